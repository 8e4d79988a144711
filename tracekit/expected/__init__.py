"""The expected time of work and transfers on a typical rank, and each rank's excess over it."""
