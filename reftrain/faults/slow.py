"""Faults that make ranks late and let the run end: slow computing, a slow clock, pauses, a late loader, a slow link.

`launch_bound` holds the slow host, `doc_imbalance` the longer documents.
"""

import math
import time

from reftrain.config.fault_spec import FaultSpec
from reftrain.faults.extra_work import ExtraWork
from reftrain.faults.fault import Fault
from reftrain.faults.pace import Pace
from reftrain.rank.events import CollectiveCall, HostCopy, Segment
from reftrain.rank.hooks import RunContext


class SlowCompute(Fault, kind="slow_compute"):
    """Multiplies the rank's own compute time: more matrix products, or longer emulated operators.

    `factor` holds for the first `left_s` seconds of what the rank still computes in the step.
    """

    def __init__(self, spec: FaultSpec) -> None:
        super().__init__(spec)
        self.factor = spec.values.get("factor", 1.0)
        self.left_s = math.inf
        self._extra: ExtraWork | None = None

    def setup(self, context: RunContext) -> None:
        """Prepare the extra work; an emulated device takes longer instead (`slowed`)."""
        super().setup(context)
        if self.here and not self.emulated:
            self._extra = ExtraWork(self.factor, context.device)

    def slowed(self, seconds: float) -> float:
        """Return how long the emulated device takes for what takes it `seconds` otherwise."""
        if not self.active:
            return seconds
        struck = min(seconds, self.left_s)
        self.left_s -= struck
        return seconds + (self.factor - 1.0) * struck

    def segment_begin(self, segment: Segment) -> None:
        """Start measuring own computation."""
        del segment
        if self.active and self._extra is not None:
            self._extra.begin()

    def segment_end(self, segment: Segment) -> None:
        """Compute on for (factor - 1) times as long."""
        del segment
        if not self.active or self._extra is None:
            return
        self._extra.factor = self.factor
        self.left_s = max(self.left_s - self._extra.end(self.left_s), 0.0)


class Paced(SlowCompute):
    """Multiplies compute time by the pace of the step, on the rank that is named or on all."""

    def __init__(self, spec: FaultSpec) -> None:
        super().__init__(spec)
        self._pace = Pace(spec)

    def strikes(self, context: RunContext) -> bool:
        """Return whether this rank is named, or none is."""
        return self.spec.rank is None or super().strikes(context)

    def step_begin(self, step: int) -> None:
        """Find out the pace of the step."""
        super().step_begin(step)
        if self.active:
            self.factor, self.left_s = self._pace.factor(time.perf_counter()), self._pace.ramp_s


class Throttle(Paced, kind="throttle"):
    """Slows one device down as it gets hotter."""


class ClockSwing(Paced, kind="clock_swing"):
    """Lets the clock swing with the day."""


class PowerSwing(Paced, kind="power_swing"):
    """Slows the first of each step's compute, for which power is limited."""


class LongStage(SlowCompute, kind="long_stage"):
    """Multiplies the compute time of every rank of a pipeline stage: that of `rank`, else the last."""

    def strikes(self, context: RunContext) -> bool:
        """Whether this rank is of the stage."""
        mesh = context.mesh
        stage = mesh.sizes["pp"] - 1 if self.spec.rank is None else mesh.coords_of(self.spec.rank)["pp"]
        return mesh.coords["pp"] == stage


class Pauses(Fault, kind="pauses"):
    """Pauses the host once in `every` segments, as a garbage collector does."""

    def __init__(self, spec: FaultSpec) -> None:
        super().__init__(spec)
        self._segments = 0

    def segment_begin(self, segment: Segment) -> None:
        """Pause when it is time."""
        del segment
        if self.active:
            self._segments += 1
            if self._segments % int(self.spec.values["every"]) == 0:
                time.sleep(self.spec.values["pause_ms"] / 1e3)


class LateData(Fault, kind="late_data"):
    """Makes the data loader late."""

    def data_begin(self, step: int) -> None:
        """Wait before the batch."""
        del step
        if self.active:
            time.sleep(self.spec.values["delay_ms"] / 1e3)


class SlowHostLink(Fault, kind="slow_host_link"):
    """Delays every copy of the rank between device and host."""

    def copy_end(self, copy: HostCopy) -> None:
        """Let the copy last longer."""
        del copy
        if self.active:
            time.sleep(self.spec.values["delay_ms"] / 1e3)


class SlowLink(Fault, kind="slow_link"):
    """Delays every message and collective of the rank, but not its computation."""

    def _delay(self) -> None:
        if self.active:
            time.sleep(self.spec.values["delay_ms"] / 1e3)

    def collective_begin(self, call: CollectiveCall) -> None:
        """Delay what the rank sends."""
        if call.op != "recv":
            self._delay()

    def wait_end(self, call: CollectiveCall) -> None:
        """Delay what the rank receives."""
        if call.op == "recv":
            self._delay()
