"""Which rank hung the job: pure functions from flight-recorder dumps to one finding."""
