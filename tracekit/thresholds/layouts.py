"""Thresholds of predictions for other meshes (`tracekit whatif --to-mesh`)."""

from typing import Final

CUT_DOUBT: Final = 0.06
"""Share of the compute by which it may miss an even division, for each doubling or halving of tensor or context ranks:
smaller operations are less efficient, and some work is not divided. Simulated jobs on an H100 missed by up to 1.6 %;
their kernels lose less than those of real devices."""

STAGE_DOUBT: Final = 0.02
"""Share of the step by which any other layout may be missed: simulated jobs by up to 1.1 %."""

HOST_DOUBT: Final = 0.25
"""The same where threads of hosts carry transfers out: real runs were missed by up to 17 %, crowded ones by 35 %."""

PER_BATCH: Final = 1.5
"""Replicas that gather so many times what they sum, or the reverse, do one of both with every micro-batch: with one
micro-batch ZeRO-3 gathers twice what it sums, and an optimizer that is sharded alone as much.
"""
