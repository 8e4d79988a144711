"""Which rank makes the job slow: pure functions from tables to one finding."""
