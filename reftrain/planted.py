"""Planted faults in the real execution: what makes one rank slow, late or stuck, as hooks.

Nothing here writes into a trace: a fault sleeps, works on or stops where a sick rank would. `faults.spec`
reads and checks what the user writes; run.json records it as the truth.
"""

import ctypes
import os
import signal
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode

from reftrain.config import RunConfig
from reftrain.emulate import compute
from reftrain.errors import ConfigError
from reftrain.faults.bugs import is_bug
from reftrain.faults.calls import resize_next, skip_next
from reftrain.faults.compute import ExtraWork
from reftrain.faults.documents import LongerDocuments
from reftrain.faults.spec import FaultSpec, parse_fault
from reftrain.hooks import CollectiveCall, Hooks, RunContext, Segment, StepMetrics

if TYPE_CHECKING:
    from reftrain.trainer import Trainer

FOREVER_S = 1 << 24


class Fault(Hooks):
    """Base of all faults: knows whether it strikes this rank in the current step."""

    def __init__(self, spec: FaultSpec) -> None:
        self.spec = spec
        self.here = False
        self.active = False
        self.emulated = False

    def strikes(self, context: RunContext) -> bool:
        """Whether this rank is meant."""
        return context.rank == self.spec.rank

    def setup(self, context: RunContext) -> None:
        """Find out whether this rank is meant."""
        self.here = self.strikes(context)
        self.emulated = context.config.compute == "emulated"

    def step_begin(self, step: int) -> None:
        """Find out whether the step is meant."""
        self.active = self.here and self.spec.active(step)

    def step_end(self, metrics: StepMetrics) -> None:
        """Rest until the next step."""
        del metrics
        self.active = False


class SlowCompute(Fault):
    """Multiplies the rank's own compute time: more matrix products, or, emulated, longer sleeps."""

    def __init__(self, spec: FaultSpec) -> None:
        super().__init__(spec)
        self._extra: ExtraWork | None = None
        self._begun = 0.0

    def setup(self, context: RunContext) -> None:
        """Prepare the extra work."""
        super().setup(context)
        if self.here:
            self._extra = ExtraWork(self.spec.values["factor"], context.device)

    def segment_begin(self, segment: Segment) -> None:
        """Start measuring own computation."""
        del segment
        if self.active and self._extra is not None:
            self._begun = time.perf_counter()
            self._extra.begin()

    def segment_end(self, segment: Segment) -> None:
        """Compute on for (factor - 1) times as long."""
        if not self.active or self._extra is None:
            return
        if self.emulated:
            compute(segment, (self.spec.values["factor"] - 1) * (time.perf_counter() - self._begun))
        else:
            self._extra.end()


class LongStage(SlowCompute):
    """Multiplies the compute time of every rank of a pipeline stage: that of `rank`, else the last."""

    def strikes(self, context: RunContext) -> bool:
        """Whether this rank is of the stage."""
        mesh = context.mesh
        stage = mesh.sizes["pp"] - 1 if self.spec.rank is None else mesh.coords_of(self.spec.rank)["pp"]
        return mesh.coords["pp"] == stage


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
        """Spin as long as the host waits for so many operators."""
        end = time.perf_counter() + calls * self.delay_s
        while time.perf_counter() < end:
            pass


class LaunchBound(Fault):
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


class Pauses(Fault):
    """Pauses the host once every so many segments, as a garbage collector does."""

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


class LateData(Fault):
    """Makes the data loader late."""

    def data_begin(self, step: int) -> None:
        """Wait before the batch."""
        del step
        if self.active:
            time.sleep(self.spec.values["delay_ms"] / 1e3)


class SlowLink(Fault):
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


class DocImbalance(Fault):
    """Gives one data-parallel replica longer documents: that of `rank`, else another one each step.

    Their last queries fall into the later chunk of the context rank of `rank`, else of one drawn for each sequence.
    """

    def strikes(self, context: RunContext) -> bool:
        """Whether this rank is meant: all, because all ranks of a replica must load the same data."""
        del context
        return True

    def built(self, trainer: "Trainer") -> None:
        """Put longer documents between the source and the loader."""
        config, mesh = trainer.config, trainer.mesh
        if config.compute == "real" and trainer.kernel not in {"documents", "flex"}:
            raise ConfigError(
                "fault",
                f"doc_imbalance shows nothing where attention ({trainer.kernel}) costs every mask the same",
                "set numerics.attention = documents, or compute = emulated",
            )
        at = None if self.spec.rank is None else mesh.coords_of(self.spec.rank)
        per_replica = config.data.batch_size // mesh.dp.size

        def struck(number: int) -> float | None:
            step, within = divmod(number, config.data.batch_size)
            rng = np.random.default_rng((config.data.seed, step))
            replica = int(rng.integers(mesh.dp.size)) if at is None else at["dp"]
            if not self.spec.active(step) or within // per_replica != replica:
                return None
            drawn = np.random.default_rng((config.data.seed, number)).integers(mesh.cp.size)
            index = int(drawn) if at is None else at["cp"]
            return (2 * mesh.cp.size - index) / (2 * mesh.cp.size)

        loader = trainer.loader
        masked = config.numerics.document_mask
        loader.source = LongerDocuments(loader.source, self.spec.values["factor"], struck, masked=masked)


class Hang(Fault):
    """Strikes once, at the rank's first communication of the step (on the axis and of the kind named)."""

    def setup(self, context: RunContext) -> None:
        """Find out whether this rank is meant."""
        super().setup(context)
        self.axes = None if self.spec.axis is None else CALLS_OF[self.spec.axis]
        self.struck = False

    def collective_begin(self, call: CollectiveCall) -> None:
        """Strike, when it is time."""
        on_axis = self.axes is None or call.axis in self.axes
        if self.active and not self.struck and on_axis and self.spec.op in {None, call.op}:
            self.struck = True
            self.strike(call)

    def strike(self, call: CollectiveCall) -> None:
        """Do what the kind does in place of, or before, this call."""
        raise NotImplementedError


class HostStall(Hang):
    """Never comes to the call: asleep on the host."""

    def strike(self, call: CollectiveCall) -> None:
        """Sleep for good."""
        del call
        time.sleep(FOREVER_S)


class HoldGil(Hang):
    """Never comes to the call: a library call keeps the interpreter's lock."""

    def strike(self, call: CollectiveCall) -> None:
        """Sleep for good within a C function called with the lock held (`PyDLL`)."""
        del call
        ctypes.PyDLL(None).sleep(FOREVER_S)


class Crash(Hang):
    """Dies before the call."""

    def strike(self, call: CollectiveCall) -> None:
        """Die as by the out-of-memory killer."""
        del call
        os.kill(os.getpid(), signal.SIGKILL)


class SkipCollective(Hang):
    """Leaves the call out and goes on: a branch that the other ranks do not take."""

    def strike(self, call: CollectiveCall) -> None:
        """Leave out what follows."""
        skip_next(call.op)


class WrongSize(Hang):
    """Makes the call with another size than its peers."""

    def strike(self, call: CollectiveCall) -> None:
        """Change what follows."""
        resize_next(call.op)


CALLS_OF = {"tp": {"tp", "kv"}, "cp": {"cp"}, "pp": {"pp", "embedding"}, "dp": {"dp", "dp_cp"}}
"""Names of `CollectiveCall.axis` that a fault's axis stands for: FSDP2's reductions are data parallel."""

KINDS: dict[str, type[Fault]] = {
    "slow_compute": SlowCompute,
    "launch_bound": LaunchBound,
    "pauses": Pauses,
    "late_data": LateData,
    "slow_link": SlowLink,
    "doc_imbalance": DocImbalance,
    "long_stage": LongStage,
    "skip_collective": SkipCollective,
    "host_stall": HostStall,
    "hold_gil": HoldGil,
    "wrong_size": WrongSize,
    "crash": Crash,
}


def read_faults(config: RunConfig) -> list[FaultSpec]:
    """Read the run's planted faults; raises `ConfigError` for one that cannot be planted."""
    specs = [parse_fault(text, config.mesh.world_size) for text in config.evidence.faults if not is_bug(text)]
    for spec in specs:
        if spec.kind not in KINDS:
            raise ConfigError(
                "fault", f"{spec.kind} cannot be planted here", f"choose among {', '.join(KINDS)}"
            )
        if spec.axis is not None and getattr(config.mesh, spec.axis) == 1:
            raise ConfigError(
                "fault.axis",
                f"nobody communicates on {spec.axis}: it has one rank",
                f"choose another axis, or a mesh with {spec.axis} of 2 or more",
            )
    return specs


def fault_hooks(specs: Sequence[FaultSpec]) -> list[Hooks]:
    """Make the hooks of planted faults."""
    return [KINDS[spec.kind](spec) for spec in specs]
