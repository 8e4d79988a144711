"""Emulated computation: every segment also takes the time it would take on the emulated device.

With a model small enough that its real computation costs nothing, ranks that share a few cores overlap as
they would on a cluster, while communication, scheduling and tracing stay real. The time passes inside an
operator of our own, so that a profiler sees computation where computation is emulated.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from reftrain.rank.events import Segment
from reftrain.rank.hooks import Hooks

_LIBRARY: Final[Any] = torch.library.Library("reftrain", "DEF")  # type: ignore[no-untyped-call]
for _name in ("emulated_matmul", "emulated_attention"):
    _LIBRARY.define(f"{_name}(float seconds) -> ()")
    _LIBRARY.impl(_name, time.sleep, "CompositeExplicitAutograd")


def compute(segment: Segment, seconds: float) -> None:
    """Let the emulated device compute for `seconds` on what the segment does."""
    if segment.name == "attention":
        torch.ops.reftrain.emulated_attention(seconds)
    else:
        torch.ops.reftrain.emulated_matmul(seconds)


class EmulatedCompute(Hooks):
    """Computes flops / speed seconds in each segment; backward takes twice the forward's work.

    `slowed`: functions that return how long a slow device takes for what takes a segment some seconds.
    """

    def __init__(self, gflops: float, slowed: Sequence[Callable[[float], float]] = ()) -> None:
        self.flops_per_s = gflops * 1e9
        self._slowed = slowed

    def segment_end(self, segment: Segment) -> None:
        """Take the segment's time in one operator, as a slow device does."""
        seconds = segment.flops * (2 if segment.phase == "backward" else 1) / self.flops_per_s
        for slowed in self._slowed:
            seconds = slowed(seconds)
        if seconds:
            compute(segment, seconds)
