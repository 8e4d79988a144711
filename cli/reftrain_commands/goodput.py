"""`reftrain goodput`: the share of a long job that trains, with interruptions, checkpoints and restarts."""

import json
from typing import Any

import click

from reftrain.errors import ConfigError
from reftrain.thresholds import LARGEST_INTEGER, MOST_DEVICES, MOST_INTERRUPTIONS

from ..output import JSON, FiniteRange, emit
from ..progress import waiting

SECONDS = FiniteRange(0.0, 1e6)


@click.command()
@click.option("--gpus", type=click.IntRange(1, MOST_DEVICES), default=16384, help="GPUs of the job.")
@click.option("--days", type=FiniteRange(0.1, 1000.0), default=54.0, help="Length of the job.")
@click.option(
    "--between",
    type=FiniteRange(0.01, 1e5),
    metavar="HOURS",
    help="Mean time between interruptions of the job; by the published rate a GPU if left out.",
)
@click.option(
    "--interval",
    type=FiniteRange(1.0, 1e6),
    metavar="S",
    help="Seconds of training between checkpoints; the best interval if left out.",
)
@click.option(
    "--stall",
    type=FiniteRange(0.01, 1e5),
    default=5.0,
    metavar="S",
    help="Seconds that a checkpoint stops training.",
)
@click.option(
    "--write", type=SECONDS, default=60.0, metavar="S", help="Seconds until a restart can use a checkpoint."
)
@click.option(
    "--stops", type=SECONDS, default=30.0, metavar="S", help="Seconds until an ended process is noticed."
)
@click.option(
    "--hangs",
    type=SECONDS,
    default=600.0,
    metavar="S",
    help="Seconds until a hang is noticed, as by torch's watchdog.",
)
@click.option(
    "--restart", type=SECONDS, default=300.0, metavar="S", help="Seconds from noticing to the first step."
)
@click.option("--spares", type=click.IntRange(0, MOST_DEVICES), default=16, help="Spare hosts.")
@click.option(
    "--repair",
    type=FiniteRange(0.0, 1e5),
    default=24.0,
    metavar="HOURS",
    help="Hours until a host is repaired.",
)
@click.option("--runs", type=click.IntRange(1, 1000), default=4, help="Jobs to simulate.")
@click.option("--seed", type=click.IntRange(0, LARGEST_INTEGER), default=0, help="Seed of the interruptions.")
@JSON
def goodput(
    gpus: int, between: float | None, interval: float | None, repair: float, runs: int, seed: int,
    json_to: str | None, **times: Any,
) -> None:  # fmt: skip
    """Estimate the share of a long job spent training, after interruptions, checkpoints, detection and restarts.

    \b
    reftrain goodput --gpus 16384 --hangs 60
    """
    from reftrain.goodput.failures import hours_between
    from reftrain.goodput.model import Habits, drawn, rows_for
    from reftrain.goodput.report import document, goodput, text

    hours = hours_between(gpus) if between is None else between
    habits = Habits(between=hours * 3600.0, repair=repair * 3600.0, **times)
    rows = 2 * rows_for(habits)  # half the time between them is asked as well
    if rows * runs > MOST_INTERRUPTIONS:
        problem = f"{rows * runs} interruptions are too many to simulate"
        raise ConfigError("--between", problem, "give a longer time, or fewer --days or --runs")
    with waiting("simulating the job"):
        found = goodput(habits, gpus, drawn(rows, runs, seed), interval)
    emit(text(found), lambda: json.dumps(document(found)) + "\n", json_to)
