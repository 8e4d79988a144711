"""Finds the first step in which two runs part, by captures at few steps."""
