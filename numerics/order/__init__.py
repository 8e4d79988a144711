"""The order of every sum of a run: its plan, how plans differ, and the replay in that order."""
