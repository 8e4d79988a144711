"""`reftrain server`: a parameter server with bounded staleness beside synchronous data parallelism."""

import json
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from reftrain.errors import ConfigError
from reftrain.thresholds import LARGEST_INTEGER, LARGEST_JITTER, MOST_FORKED, MOST_STEPS

from ..completion import one_of, presets
from ..output import JSON, FiniteRange, emit

if TYPE_CHECKING:
    from reftrain.config.fault_spec import FaultSpec
    from reftrain.config.run import RunConfig


@click.command()
@click.option("--preset", shell_complete=one_of(presets), help="Model preset: tiny, small, 8b, 70b, 405b.")
@click.option(
    "--workers", type=click.IntRange(1, MOST_FORKED - 1), default=3, help="Workers beside the server."
)
@click.option(
    "--staleness", "bounds", type=click.IntRange(0, MOST_STEPS), multiple=True, metavar="S",
    help="Steps that a worker may be ahead of the weights; repeatable; 0, 1, 2 and 4 if left out.",
)  # fmt: skip
@click.option("--steps", type=click.IntRange(1, MOST_STEPS), default=20, help="Steps of each worker.")
@click.option(
    "--fault", "faults", multiple=True, help="slow_compute:rank=R,factor=F; workers are ranks 1 to N."
)
@click.option("--train", is_flag=True, help="Also train, with real processes and the first bound.")
@click.option("--hardware", default="h100", show_default=True, help="The machine of the simulation.")
@click.option(
    "--jitter", type=FiniteRange(0, LARGEST_JITTER), default=0.05, help="Spread of computing, a share."
)
@click.option("--seed", type=click.IntRange(0, LARGEST_INTEGER), default=0, help="Seed of the spread.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="TABLE.FIELD=VALUE",
    help="Set any field of a run; repeatable.",
)
@JSON
def server(
    workers: int, bounds: tuple[int, ...], steps: int, hardware: str, jitter: float, seed: int,
    json_to: str | None, *, train: bool, **given: Any,
) -> None:  # fmt: skip
    """Compare a parameter server with synchronous data parallelism: step time, waiting, staleness.

    \b
    reftrain server --workers 8 --fault slow_compute:rank=2,factor=1.5
    reftrain server --staleness 2 --train
    """
    from reftrain.cost.hardware import load_hardware
    from reftrain.cost.job import job_of_run
    from reftrain.server.report import Answer, document, text
    from reftrain.server.simulated import computing, costs_of, synchronous, with_server

    config = _config(given["preset"], given["settings"], workers, steps)
    faults = _faults(given["faults"], workers)
    costs = costs_of(job_of_run(config), load_hardware(hardware))
    took = computing(costs, workers, steps, faults, jitter, seed)
    listed = bounds or (0, 1, 2, 4)
    rows = [synchronous(costs, took), *(with_server(costs, took, bound) for bound in listed)]
    answer = Answer(workers, steps, rows)
    if train:
        answer = _trained(answer, config, listed[0], faults)
    emit(text(answer), lambda: json.dumps(document(answer)) + "\n", json_to)


def _trained(answer: Any, config: "RunConfig", bound: int, faults: "Sequence[FaultSpec]") -> Any:
    """Return the answer with the job trained by real processes, and held against its replay."""
    from dataclasses import replace

    import torch

    from reftrain.server.training import replayed, train

    begun = time.perf_counter()
    trained = train(config, bound, faults)
    seconds = time.perf_counter() - begun
    again = replayed(config, trained.versions)
    same = trained.losses == again.losses and torch.equal(trained.weights, again.weights)
    return replace(answer, trained=trained, seconds=seconds, repeated=same)


def _config(preset: str | None, settings: Sequence[str], workers: int, steps: int) -> "RunConfig":
    """Return the configuration: workers are data-parallel ranks, and the formats those of one process.

    Raises ConfigError for what a worker does not compute.
    """
    from reftrain.config.file import load

    from .run_settings import tables_of

    tables = tables_of(preset, None, settings)
    data, numerics = tables.setdefault("data", {}), tables.setdefault("numerics", {})
    tables.setdefault("mesh", {})["dp"] = workers
    tables.setdefault("run", {})["steps"] = steps
    data.setdefault("batch_size", 4 * workers)
    numerics.setdefault("policy", "fp32")
    config = load(None, tables)
    for wrong, field, remedy in (
        (config.mesh.world_size != workers, "mesh", "leave tp, cp and pp at 1"),
        (config.numerics.policy not in {"fp32", "fp64"}, "numerics.policy", "choose fp32 or fp64"),
        (config.encoder.layers > 0, "encoder", "choose a text model"),
        (
            config.numerics.attention in {"flash", "flex"},
            "numerics.attention",
            "choose sdpa, math or documents",
        ),
    ):
        if wrong:
            raise ConfigError(field, "is not what workers of a parameter server compute here", remedy)
    return config


def _faults(texts: Sequence[str], workers: int) -> "list[FaultSpec]":
    """Return the planted slow workers; raises ConfigError for another kind, or the server's rank."""
    from reftrain.config.fault_spec import parse_fault

    found = [parse_fault(text, workers + 1) for text in texts]
    for spec in found:
        if spec.kind != "slow_compute":
            raise ConfigError("fault", f"{spec.kind} is not planted here", "plant slow_compute")
        if not spec.rank:
            raise ConfigError("fault.rank", "rank 0 is the server", f"name a worker, 1 to {workers}")
    return found
