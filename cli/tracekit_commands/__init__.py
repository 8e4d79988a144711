"""The commands of `tracekit`."""
