"""Measures long steps by short ones: once the pipeline is full, each round of micro-batches adds the same.

A table of 2 048 micro-batches takes seconds to lay out, check and time, and the planner asks for dozens of them.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reftrain.cost.job import Job
from reftrain.thresholds import FULL_ROUNDS, SAME_GROWTH

Figures = NDArray[np.float64]
ONE_WAY = frozenset({"1f1b", "flexible"})
"""Schedules in which ranks hold no more micro-batches in a longer step."""
SAMPLES = (2, 3, 4)
"""Lengths of the shorter steps, in halves of a full pipeline's rounds."""


def figures(job: Job, measure: Callable[[Job], Any], rounds: float = 0.0) -> Figures:
    """Return the figures that `measure` gives of a job's step; of a long one they are drawn from three shorter ones.

    The shorter steps leave out whole rounds of micro-batches and have at least `rounds` of them. Their figures have
    to lie on a line; where they do not, longer steps are tried, at last the whole one.
    """
    count, period = job.micro_batches, max(job.mesh.pp, job.consecutive)
    half = math.ceil(max(FULL_ROUNDS, rounds) / SAMPLES[0])
    while _takes_any_length(job) and 2 * SAMPLES[-1] * half * period <= count:
        counts = [n * half * period + count % period for n in SAMPLES]
        first, second, third = (_of(replace(job, micro_batches=n), measure) for n in counts)
        growth = third - second
        if np.all(np.abs(growth - (second - first)) <= SAME_GROWTH * np.abs(third)):
            return third + growth * ((count - counts[2]) / (half * period))
        half *= 2
    return _of(job, measure)


def one_round(job: Job) -> Job:
    """Return the job with one round of micro-batches; the job itself where its schedule does not take so few."""
    return replace(job, micro_batches=min(job.micro_batches, job.mesh.pp)) if _takes_any_length(job) else job


def _takes_any_length(job: Job) -> bool:
    return job.given is None and job.schedule in ONE_WAY


def _of(job: Job, measure: Callable[[Job], Any]) -> Figures:
    return np.asarray(measure(job), dtype=np.float64)


def whole_rounds(pp: int, micro_batches: int) -> int | None:
    """Return the fewest consecutive micro-batches, pp to 2·pp, with which no round is shorter than the pipeline.

    After a shorter last round virtual stages can wait for one another, unless most forwards come first. None if there
    is no such number.
    """
    counts = range(pp, min(2 * pp, micro_batches) + 1)
    return next((k for k in counts if not 0 < micro_batches % k < pp), None)
