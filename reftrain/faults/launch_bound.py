"""The fault of a slow host: it waits around each operator that it launches."""

import time
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from reftrain.config.fault_spec import FaultSpec
from reftrain.faults.fault import Fault
from reftrain.rank.events import CollectiveCall, Segment, StepMetrics


class _DelayedOperators(TorchFunctionMode):
    """Lets the host wait around each operator that the program calls, while `running`."""

    def __init__(self, delay_s: float) -> None:
        super().__init__()
        self.delay_s = delay_s
        self.running = True
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        result = func(*args, **(kwargs or {}))
        if self.running and isinstance(
            result, torch.Tensor | tuple | list
        ):  # not a size, a format or a device
            self.calls += 1
            self.wait(1)
        return result

    def wait(self, calls: int) -> None:
        """Spin for the time that the host waits for `calls` operators."""
        end = time.perf_counter() + calls * self.delay_s
        while time.perf_counter() < end:
            pass


class LaunchBound(Fault, kind="launch_bound"):
    """Adds host time to each operator, as a slow or busy CPU does.

    Backward is started by autograd without the program's doing: there a segment pays, at its begin, for as many
    operators as its forward called. Communication calls are not delayed.
    """

    def __init__(self, spec: FaultSpec) -> None:
        super().__init__(spec)
        self._mode: _DelayedOperators | None = None
        self._before = 0
        self._calls: dict[tuple[str, int], int] = {}

    def step_begin(self, step: int) -> None:
        """Begin to delay."""
        super().step_begin(step)
        if self.active:
            self._mode = _DelayedOperators(self.spec.values["delay_us"] / 1e6)
            self._mode.__enter__()  # type: ignore[no-untyped-call] # as above

    def step_end(self, metrics: StepMetrics) -> None:
        """Stop delaying."""
        super().step_end(metrics)
        self.close()

    def segment_begin(self, segment: Segment) -> None:
        """Begin to count a forward's operators, or pay for those of a backward."""
        if self._mode is None:
            return
        if segment.phase == "backward":
            self._mode.wait(self._calls.get((segment.name, segment.layer), 0))
        self._before = self._mode.calls

    def segment_end(self, segment: Segment) -> None:
        """Remember the forward's count."""
        if self._mode is not None and segment.phase == "forward":
            self._calls[segment.name, segment.layer] = self._mode.calls - self._before

    def collective_begin(self, call: CollectiveCall) -> None:
        """Leave communication alone."""
        del call
        if self._mode is not None:
            self._mode.running = False

    def collective_end(self, call: CollectiveCall) -> None:
        """Delay again."""
        del call
        if self._mode is not None:
            self._mode.running = True

    def close(self) -> None:
        """Stop delaying, also after an error."""
        mode, self._mode = self._mode, None
        if mode is not None:
            mode.__exit__(None, None, None)  # type: ignore[no-untyped-call] # as above
