"""Real training runs that something outside the trainer disturbs: `python -m tests.outside` prints a row a run."""
