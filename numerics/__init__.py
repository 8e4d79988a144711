"""Tells floating-point drift from bugs by replaying a run in its own accumulation order."""
