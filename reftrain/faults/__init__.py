"""Planted faults: what is wrong with a run on purpose, so that an analysis can be judged by the truth.

`spec` reads `kind:rank=5,factor=1.5,steps=2:`; the other modules disturb the real execution. Nothing here
writes into a trace.
"""
