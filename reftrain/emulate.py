"""Emulated computation: every segment also sleeps the time it would take on the emulated device.

With a model small enough that its real computation costs nothing, ranks that share a few cores overlap as
they would on a cluster, while communication, scheduling and tracing stay real.
"""

import time

from reftrain.hooks import Hooks, Segment


class EmulatedCompute(Hooks):
    """Sleeps flops / speed after each segment; backward takes twice the forward's work."""

    def __init__(self, gflops: float) -> None:
        self.flops_per_s = gflops * 1e9

    def segment_end(self, segment: Segment) -> None:
        """Sleep the segment's time."""
        work = segment.flops * (2 if segment.phase == "backward" else 1)
        if work:
            time.sleep(work / self.flops_per_s)
