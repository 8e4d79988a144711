"""Who waited for whom, and why: pure functions from tables to findings."""
