"""Measures waits, transfers and idle time of a run, before any analysis judges them."""
