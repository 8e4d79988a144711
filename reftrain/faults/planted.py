"""Planted faults in the real execution: what makes one rank slow, late or stuck, as hooks.

Nothing of them writes into a trace: a fault sleeps, works on or stops where a sick rank would. `faults.spec` reads and
checks what the user writes; run.json records it as the truth; the classes stand in `faults`.
"""

from collections.abc import Sequence

from reftrain.config.fault_spec import HANGS, FaultSpec, parse_fault
from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from reftrain.faults.bugs import is_bug
from reftrain.faults.fault import Fault
from reftrain.faults.hangs import Crash, HoldGil, HostStall, SkipCollective, WrongSize
from reftrain.faults.imbalance import DocImbalance
from reftrain.faults.launch import LaunchBound
from reftrain.faults.slow import LateData, LongStage, Pauses, SlowCompute, SlowLink
from reftrain.rank.hooks import Hooks

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


COMMUNICATING = HANGS | {"slow_link"}
"""Kinds that do nothing where nobody communicates."""


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
        if spec.kind in COMMUNICATING and config.mesh.world_size == 1:
            raise ConfigError(
                "fault",
                f"{spec.kind} strikes at communication, and one rank has none",
                "choose a larger mesh",
            )
        if spec.first >= config.steps:
            raise ConfigError(
                "fault.steps",
                f"{spec.kind} would begin in step {spec.first} of a run whose last is {config.steps - 1}",
                "begin earlier, or raise run.steps",
            )
    return specs


def fault_hooks(specs: Sequence[FaultSpec]) -> list[Hooks]:
    """Make the hooks of planted faults."""
    return [KINDS[spec.kind](spec) for spec in specs]
