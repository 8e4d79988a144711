"""Planted slow and stuck ranks: reads a run's faults, checks that they can strike, and makes their hooks.

A fault never writes into a trace: it sleeps, works on or stops in the real execution, where a sick rank would.
run.json records it as the truth. Each kind's hook class enters itself into `fault.PLANTS`.
"""

from collections.abc import Sequence
from typing import Final

from reftrain.config.fault_kinds import FAULT_KINDS
from reftrain.config.fault_spec import FaultSpec, parse_fault
from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from reftrain.execute.emulated_compute import EmulatedCompute
from reftrain.faults import doc_imbalance, hangs, launch_bound, slow
from reftrain.faults.bugs import is_bug
from reftrain.faults.fault import PLANTS
from reftrain.rank.hooks import Hooks

PLANTING: Final = (doc_imbalance, hangs, launch_bound, slow)
"""The modules with hook classes of faults, which enter themselves into `PLANTS`."""


def read_faults(config: RunConfig) -> list[FaultSpec]:
    """Return the run's planted faults; raises `ConfigError` for one that cannot be planted."""
    specs = [parse_fault(text, config.mesh.world_size) for text in config.evidence.faults if not is_bug(text)]
    for spec in specs:
        if FAULT_KINDS[spec.kind].simulated:
            raise ConfigError(
                "fault",
                f"{spec.kind} strikes simulated jobs only",
                "plant it by reftrain simulate, or choose another of reftrain faults",
            )
        if spec.axis is not None and getattr(config.mesh, spec.axis) == 1:
            raise ConfigError(
                "fault.axis",
                f"no rank communicates on {spec.axis}: it has one rank",
                f"choose another axis, or a mesh with {spec.axis} of 2 or more",
            )
        if FAULT_KINDS[spec.kind].communicates and config.mesh.world_size == 1:
            raise ConfigError(
                "fault",
                f"{spec.kind} strikes at communication, and one rank has none",
                "choose a larger mesh",
            )
        if FAULT_KINDS[spec.kind].copies and not config.optimizer.offload:
            raise ConfigError(
                "fault",
                f"{spec.kind} strikes at copies between device and host, and this run makes none",
                "set optimizer.offload = true",
            )
        if spec.first >= config.steps:
            raise ConfigError(
                "fault.steps",
                f"{spec.kind} would begin in step {spec.first} of a run with last step {config.steps - 1}",
                "begin earlier, or raise run.steps",
            )
    return specs


def fault_hooks(specs: Sequence[FaultSpec], reached: int = -1) -> list[Hooks]:
    """Return one hook for each planted fault; `reached`: the last step that an earlier attempt of the job had begun."""
    made: list[Hooks] = []
    for spec in specs:
        plant = PLANTS[spec.kind]
        made.append(plant(spec, reached) if issubclass(plant, hangs.Hang) else plant(spec))
    return made


def emulated_compute(config: RunConfig, planted: Sequence[Hooks]) -> list[Hooks]:
    """Return the hook that emulates computing, slowed by the `planted` faults; none where computing is real."""
    if config.compute != "emulated":
        return []
    slowed = [fault.slowed for fault in planted if isinstance(fault, slow.SlowCompute)]
    return [EmulatedCompute(config.emulated_gflops, slowed)]
