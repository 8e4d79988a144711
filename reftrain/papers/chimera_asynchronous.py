"""Chimera (SC'21) beside PipeDream and PipeDream-2BW, which are never flushed: the rate of their steady state.

A table of several optimiser steps is timed twice, in two lengths; the difference is the time of the further steps, in
which the pipeline is full.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from reftrain.config.run import MeshConfig
from reftrain.cost.hardware import Hardware
from reftrain.cost.job import Job, cost_model_of
from reftrain.cost.memory import MemoryModel
from reftrain.cost.shapes import layer_counts
from reftrain.papers.chimera import (
    BERT,
    GPT_2,
    LAYERS,
    MOST_MICRO_BATCHES,
    STAGES,
    WIDEST_MICRO_BATCH,
    Workload,
    best,
)
from reftrain.papers.figure import Line
from reftrain.plan.projection import durations
from reftrain.plan.step_time import time_step
from reftrain.schedule.generators import generate
from reftrain.schedule.spec import ScheduleSpec

LABELS: Final = {"pipedream": "PipeDream", "pipedream_2bw": "PipeDream-2BW"}


@dataclass(frozen=True)
class Published:
    """Published speed-ups of Chimera over the two, and how these ran.

    PipeDream updates at every micro-batch of `pipedream_batch` sequences. PipeDream-2BW had `stages` (figures 17 and
    18, with as many sequences a node).
    """

    work: Workload
    low: float
    high: float
    pipedream_batch: int
    stages: int


ROWS: Final = (Published(BERT, 1.17, 1.94, 96, 4), Published(GPT_2, 1.16, 2.01, 512, 16))


def jobs(row: Published, scheme: str) -> Iterator[Job]:
    """Yield the jobs of a scheme, one optimiser step each: all (p, b), PipeDream with one micro-batch."""
    work = row.work
    for p in STAGES:
        replicas = work.nodes // p
        for size in (1 << n for n in range(WIDEST_MICRO_BATCH.bit_length())):
            m = 1 if scheme == "pipedream" else work.batch // replicas // size
            fits = size * replicas <= row.pipedream_batch if m == 1 else p <= m <= MOST_MICRO_BATCHES
            for recompute in ("none", "full") if fits else ():
                yield Job(
                    model=work.model, mesh=MeshConfig(pp=p, dp=replicas, zero=0), seq_len=work.seq_len,
                    micro_batches=m, layers=layer_counts(LAYERS, p, balanced=False), schedule=scheme,
                    micro_batch_size=size, recompute=recompute, policy="fp32", kernels="eager", attention="sdpa",
                    clips=False,
                )  # fmt: skip


def rate(job: Job, hardware: Hardware) -> float:
    """Return the sequences a second of a job in its steady state, 0 where it does not fit."""
    steps = 2 if job.micro_batches > 1 else 2 * job.mesh.pp
    seconds = []
    for count in (steps, 2 * steps):
        spec = ScheduleSpec(job.schedule, job.mesh.pp, job.micro_batches, steps=count)
        laid = replace(job, given=generate(spec))
        times = durations(laid, cost_model_of(laid, hardware))
        seconds.append(time_step(laid.lowered, times).seconds)
    if MemoryModel(laid).peak() > hardware.usable_bytes:
        return 0.0
    sequences = steps * job.micro_batches * job.micro_batch_size * job.mesh.dp
    return sequences / float(seconds[1] - seconds[0])


def asynchronous(hardware: Hardware) -> list[Line]:
    """Return Chimera's speed-up over the asynchronous schemes, and the interval that the paper prints."""
    fits = (
        "the activations of PipeDream-2BW fit here, and a full pipeline has no bubble; the paper's ran out of memory "
        "where stages are coarse (section 4.1), but which jobs computed again is in a picture: next line, if this did"
    )
    hidden = "sums and messages ran over Gloo, through the hosts' memory, at an unpublished rate"
    lines = []
    for row in ROWS:
        ours = best(row.work, "chimera", hardware)
        rates = {scheme: [(job, rate(job, hardware)) for job in jobs(row, scheme)] for scheme in LABELS}
        ratios = {scheme: ours / max(found for _, found in known) for scheme, known in rates.items()}
        again = max(
            found
            for job, found in rates["pipedream_2bw"]
            if (job.mesh.pp, job.recompute) == (row.stages, "full")
        )
        lines += [
            Line(f"{row.work.name}, Chimera over {LABELS[scheme]}", "", None, ratio)
            for scheme, ratio in ratios.items()
        ]
        what = f"{row.work.name}, {row.work.nodes} nodes, {{}} over asynchronous schemes"
        as_run = f"{row.work.name}, over PipeDream-2BW of {row.stages} stages, recomputed"
        lines += [
            Line(what.format("least"), "", row.low, min(ratios.values()), why=fits),
            Line(as_run, "", row.low, ours / again, why=hidden),
            Line(what.format("most"), "", row.high, max(ratios.values()), why=hidden),
        ]
    return lines
