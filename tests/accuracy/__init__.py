"""How often the answer is right on generated jobs: `python -m tests.accuracy`."""
