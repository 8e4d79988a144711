"""Finds who makes a distributed training job slow, and what it costs.

Files → ingest → tables → analysis → findings → report; one way, and every stage can be looked at.
"""
