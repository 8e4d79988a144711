"""The pace of a device by its clock, which changes with time: daily swing, throttling, limited power after a wait.

Trainer and simulator ask the same `Pace`; the one measures the time of the job, the other simulates it.
"""

import math

from reftrain.config.fault_spec import FaultSpec

KINDS = ("clock_swing", "throttle", "power_swing")
"""Faults with a factor of compute time that changes with time."""


class Pace:
    """The factor of compute time of one `FaultSpec` of `KINDS`.

    `begun_s` seconds of the job's life have passed when its first step begins, so that windows of one job can be made
    one by one; time counts from the first step that the fault strikes.
    """

    def __init__(self, spec: FaultSpec, begun_s: float = 0.0) -> None:
        self.spec, self._begun_s = spec, begun_s
        self._first: float | None = None

    def factor(self, now_s: float) -> float:
        """Return the factor of compute time in a struck step that begins at `now_s`, s on any clock."""
        self._first = now_s if self._first is None else self._first
        values, passed = self.spec.values, self._begun_s + now_s - self._first
        if self.spec.kind == "clock_swing":
            return 1 + values["size"] * (1 - math.cos(2 * math.pi * passed / values["period_s"])) / 2
        if self.spec.kind == "throttle":
            return 1 + (values["factor"] - 1) * min(passed / values["rise_s"], 1.0)
        return values["factor"]

    @property
    def ramp_s(self) -> float:
        """Return for how many seconds of a rank's compute in a step the factor holds: infinite without a ramp."""
        return self.spec.values.get("ramp_ms", math.inf) / 1e3
