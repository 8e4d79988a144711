"""Writes a simulated run's folder: run.json with the truth, timeline.json, traces, flight-recorder dumps.

The folder is that of `reftrain run` (see the contract of the run folder), so that every analysis reads it the
same way. A job that hangs leaves dumps, and traces of the steps before it hung.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path

from reftrain.config.fault_kinds import FAULT_KINDS
from reftrain.config.fault_spec import FaultSpec
from reftrain.config.run import RunConfig
from reftrain.config.trace_forms import FORMS, NEWEST, TraceForm
from reftrain.documents import SimulateDocument, WrittenDocument
from reftrain.errors import ConfigError
from reftrain.record.manifest import describe, refuse_foreign, write_manifest
from reftrain.simulate.flight_writer import FlightWriter, write_dumps
from reftrain.simulate.kineto_template import Detail
from reftrain.simulate.kineto_writer import KinetoWriter, write_traces
from reftrain.simulate.pool import made_folder, put
from reftrain.simulate.runner import hang_of, without_faults
from reftrain.simulate.setup import Setup, Window
from reftrain.simulate.simulation import Simulation
from reftrain.simulate.summary import Summary, joined, summarise, tflops_per_gpu
from reftrain.simulate.timeline import time_line
from tracekit.own_files import of_a_run, remove_own


@dataclass(frozen=True)
class Written:
    """Counts of what was written: files, events (entries, of dumps), bytes."""

    files: int
    events: int
    size: int


@dataclass(frozen=True)
class Outcome:
    """A simulation with its figures and the counts of its files. `healthy` has the figures without the faults."""

    setup: Setup
    simulation: Simulation
    summary: Summary
    healthy: Summary | None
    hang: FaultSpec | None
    traces: Written | None = None
    dumps: Written | None = None

    def without_times(self) -> "Outcome":
        """Return the outcome without the times of operations, which only writers need: windows may be many."""
        return replace(self, simulation=replace(self.simulation, times=()))

    @property
    def slowdown(self) -> float | None:
        """Mean step over that without the faults; None where nothing is planted or no step is whole."""
        if self.healthy is None or not self.healthy.mean_step_ms or not self.summary.mean_step_ms:
            return None
        return self.summary.mean_step_ms / self.healthy.mean_step_ms


def outcome_of(setup: Setup, simulation: Simulation) -> Outcome:
    """Return the figures of a finished simulation; a job with faults is simulated again without them."""
    healthy = without_faults(setup, simulation.whole_steps)
    summary = summarise(simulation)
    return Outcome(setup, simulation, summary, summarise(healthy) if healthy else None, hang_of(setup))


def windows_of(setup: Setup, count: int, apart_s: float) -> list[Setup]:
    """Return the setup of each of `count` windows of the job; they begin `apart_s` seconds after each other.

    Raises ConfigError for several windows of a job that hangs.
    """
    if count > 1 and hang_of(replace(setup, steps=count * setup.steps)):
        raise ConfigError("--windows", "a job that hangs has one window", "leave --windows out")
    return [replace(setup, window=Window(number, count, apart_s)) for number in range(count)]


def together(outcomes: Sequence[Outcome]) -> Outcome:
    """Return the outcomes of a job's windows as one: steps one after the other, means of the rest, sums of counts."""
    last = outcomes[-1]
    if len(outcomes) == 1:
        return last
    written = [o.traces for o in outcomes if o.traces]
    healthy = [o.healthy for o in outcomes if o.healthy]
    traces = (
        Written(*(sum(counts) for counts in zip(*map(astuple, written), strict=True))) if written else None
    )
    return replace(
        last,
        summary=joined([o.summary for o in outcomes]),
        healthy=joined(healthy) if healthy else None,
        traces=traces,
    )


def write_folder(
    outcome: Outcome,
    config: RunConfig,
    folder: Path,
    *,
    ranks: Sequence[int],
    detail: Detail,
    flight_recorder: bool,
    jobs: int,
    form: TraceForm = FORMS[NEWEST],
    earlier: Sequence[Outcome] = (),
    progress: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Write the run folder, its traces in `form`; return the outcome with its counts.

    `progress` receives in words how many files are written. Files of an earlier run are removed first, because
    they are of another job; `earlier` are the outcomes of windows of this one that are there already. Raises
    ConfigError if the folder holds files of another program, MachineError if writing fails.
    """
    simulation, setup = outcome.simulation, outcome.setup
    refuse_foreign("--out", folder)
    for part in () if earlier else ("trace", "fr"):
        remove_own(folder / part, partial(_is_own, part))
    with made_folder(folder):
        _write_manifest(together([*earlier, outcome]), config, folder)
        _write_json(folder / "timeline.json", time_line(simulation, setup.job))
    traces = dumps = None
    if simulation.whole_steps:
        writer = KinetoWriter(simulation, folder / setup.window.folder, detail, setup.hardware.name, form)
        traces = Written(len(ranks), *write_traces(writer, ranks, jobs, _of("traces", progress)))
    if flight_recorder or outcome.hang:
        dead = _dead(outcome)
        recorder = FlightWriter(simulation, folder / "fr", dead)
        dumps = Written(
            len(set(ranks) - set(dead)), *write_dumps(recorder, ranks, jobs, _of("dumps", progress))
        )
    return replace(outcome, traces=traces, dumps=dumps)


def _dead(outcome: Outcome) -> list[int]:
    """Return the ranks that leave no dump."""
    hang = outcome.hang
    return [hang.rank] if hang and FAULT_KINDS[hang.kind].dies and hang.rank is not None else []


def _of(what: str, progress: Callable[[str], None]) -> Callable[[int, int], None]:
    """Return a callback for (files written, all files) that puts them into words."""
    return lambda done, every: progress(f"{done} of {every} {what} written")


def _is_own(part: str, path: str) -> bool:
    """True if a path below a part of the folder is one that a run writes."""
    return of_a_run(f"{part}/{path}")


def _write_manifest(outcome: Outcome, config: RunConfig, folder: Path) -> None:
    """Write run.json as `reftrain run` does; `simulated` has the step times with and without the faults."""
    simulation, setup = outcome.simulation, outcome.setup
    hosts = [simulation.host_name(rank) for rank in range(simulation.grid.world)]
    machine = {"hardware": setup.hardware.name, **setup.hardware.constants()}
    values = describe(config, hosts, setup.faults, machine)
    values["steps"] = setup.steps * setup.window.count
    values["compute"] = "simulated"
    values["seeds"] = {"simulation": setup.seed}
    schedule = setup.schedule
    values["schedule"] |= {
        "schedule": schedule.name, "micro_batches": schedule.micro_batches, "consecutive": schedule.consecutive,
    }  # fmt: skip
    values["simulated"] = {
        "whole_steps": len(outcome.summary.step_ms),
        "windows": setup.window.count,
        "windows_apart_s": setup.window.apart_s,
        "step_ms": [round(ms, 6) for ms in outcome.summary.step_ms],
        "step_ms_without_faults": round(outcome.healthy.mean_step_ms, 6) if outcome.healthy else None,
        "slowdown": round(outcome.slowdown, 6) if outcome.slowdown else None,
    }
    write_manifest(folder, values)


def _write_json(path: Path, document: dict[str, object]) -> None:
    put(path, (json.dumps(document, separators=(",", ":")) + "\n").encode())


def document(outcome: Outcome) -> SimulateDocument:
    """Return the answer as `reftrain.simulate/1`; times in ms, shares as fractions of 1."""
    simulation, setup, summary = outcome.simulation, outcome.setup, outcome.summary
    grid, job = simulation.grid, setup.job
    return {
        "schema": "reftrain.simulate/1",
        "mesh": {"order": list(grid.order), "sizes": {axis: grid.sizes[axis] for axis in grid.order}},
        "world_size": grid.world,
        "hardware": setup.hardware.name,
        "schedule": setup.schedule.name,
        "micro_batches": setup.schedule.micro_batches,
        "steps": setup.steps * setup.window.count,
        "whole_steps": len(summary.step_ms),
        "step_ms": [round(ms, 6) for ms in summary.step_ms],
        "tflops_per_gpu": round(tflops_per_gpu(job, summary.mean_step_ms), 3),
        "bubble_ratio": round(summary.bubble_ratio, 9),
        "bubble_over_compute": round(summary.bubble_over_compute, 9),
        "exposed": {axis: round(share, 9) for axis, share in summary.exposed.items()},
        "host_wait": round(summary.host_share, 9),
        "pipeline_ranks": [
            {
                "compute_ms": round(s.compute_ms, 6),
                **{f"{name}_ms": round(ms, 6) for name, ms in s.waits_ms.items()},
            }
            for s in summary.stages
        ],
        "faults": [fault.to_json() for fault in setup.faults],
        "slowdown": round(outcome.slowdown, 6) if outcome.slowdown else None,
        "hang": outcome.hang.to_json() if outcome.hang else None,
        "written": {"trace": _written(outcome.traces), "flight_recorder": _written(outcome.dumps)},
    }


def _written(written: Written | None) -> WrittenDocument | None:
    if written is None:
        return None
    return {"files": written.files, "events": written.events, "size": written.size}
