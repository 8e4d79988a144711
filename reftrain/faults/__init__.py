"""Planted faults: slow, stuck and wrong behaviour on purpose, so that an analysis can be judged by the truth.

`spec` reads `kind:rank=5,factor=1.5,steps=2:`; `slow`, `launch`, `imbalance` and `hangs` disturb the real execution
with the help of `compute`, `documents` and `calls`; `bugs` let it compute something wrong. Nothing writes into a trace.
"""
