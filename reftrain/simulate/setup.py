"""The inputs of a simulation, made from the configuration of a run and a schedule."""

from dataclasses import dataclass, replace
from typing import Final

from reftrain.config.fault_spec import FaultSpec
from reftrain.config.run import RunConfig
from reftrain.cost.hardware import Hardware
from reftrain.cost.job import Job, job_of_run
from reftrain.errors import ConfigError
from reftrain.schedule.actions import Schedule
from reftrain.schedule.check import check
from reftrain.schedule.generators import generate
from reftrain.schedule.lower import complete
from reftrain.schedule.registry import SCHEMES
from reftrain.schedule.spec import ScheduleSpec
from reftrain.simulate.grid import Grid
from reftrain.simulate.packing import Packing


@dataclass(frozen=True)
class Window:
    """One of `count` equally long windows of a job's life that begin `apart_s` seconds after each other."""

    number: int = 0
    count: int = 1
    apart_s: float = 0.0

    @property
    def begun_s(self) -> float:
        """Seconds of the job's life before it."""
        return self.number * self.apart_s

    @property
    def folder(self) -> str:
        """Folder of its traces in the run folder, with a name that readers take for a window's."""
        return f"trace/window_{self.number:04}" if self.count > 1 else "trace"


ONLY: Final = Window()


@dataclass(frozen=True)
class Setup:
    """The inputs of a simulation. `schedule` is lowered.

    `jitter` scales all random deviations; 0 leaves none. `merge` writes the kernels between two collectives as one.
    `host_waits` lets the host wait for every message that arrives, as Megatron's pipeline does. `packing` sets the time
    of attention by packed documents; without it every sequence is one document. `window`: the part of the job's life
    that is simulated, with `steps` steps.
    """

    job: Job
    schedule: Schedule
    hardware: Hardware
    steps: int = 2
    seed: int = 0
    jitter: float = 1.0
    faults: tuple[FaultSpec, ...] = ()
    merge: bool = False
    host_waits: bool = True
    packing: Packing | None = None
    window: Window = ONLY

    @property
    def first(self) -> int:
        """The number of the first step among those of all windows."""
        return self.window.number * self.steps

    @property
    def grid(self) -> Grid:
        """The rank grid."""
        mesh = self.job.mesh
        return Grid(mesh.sizes, mesh.order, mesh.ep, self.hardware.node_size)


def schedule_of(spec: ScheduleSpec, given: Schedule | None, steps: int) -> tuple[Schedule, int]:
    """Return the table to simulate, and how many times it runs for `steps` steps.

    `given` is a table from a file and is used in place of the scheme that `spec` names. An asynchronous schedule is
    never flushed, so that all its steps are one table. Raises `ScheduleError` for a table that cannot run, ConfigError
    for an unknown scheme.
    """
    if given is not None:
        check(given)
        return given, steps
    if spec.name not in SCHEMES:
        raise ConfigError("--schedule", f"{spec.name!r} is unknown", f"choose {', '.join(SCHEMES)}")
    table = generate(spec)
    return (table, steps) if table.synchronous else (generate(replace(spec, steps=steps)), 1)


def job_of(config: RunConfig, spec: ScheduleSpec, table: Schedule, *, given: bool) -> Job:
    """Return the job of a configuration with this table; kernels and attention are those of a cluster.

    `given` says that the table comes from a file and not from the scheme of `spec`.
    """
    return replace(
        job_of_run(config),
        schedule="flexible" if given else spec.name,
        micro_batches=table.micro_batches,
        pipelines=spec.pipelines,
        concatenation=spec.concatenation,
        given=table if given else None,
        kernels="fused",
        attention="flex",
    )


def lowered(config: RunConfig, table: Schedule) -> Schedule:
    """Return the table with messages, reductions and replica sums as the configuration has them."""
    return complete(table, config.mesh.zero, config.pipeline.replica_sync, config.encoder.placed)
