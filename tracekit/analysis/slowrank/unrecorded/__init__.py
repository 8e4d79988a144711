"""Ranks without a trace: what the others may be waiting for."""
