"""Jobs in which several ranks are late in a step: in turn, or all of them together."""

import random
from collections.abc import Callable

from tests.reports.jobs import UNIT, Body, backward, forward, stall, whole_step
from tests.reports.report import MISLEADING, OPEN, RIGHT, WRONG, Answer, Report
from tests.reports.slow import into, no_suspect_but_cause, seen
from tests.shapes.job import Job
from tests.shapes.layers import load, update
from tests.shapes.rank import Rank


def pauses(struck: Callable[[int, int], bool], milliseconds: float) -> Body:
    """The hosts that are `struck` (rank, step) pause, for no recorded reason; the host reads the loss in each step."""

    def body(job: Job, rank: Rank, number: int) -> None:
        if struck(rank.number, number):
            stall(rank, milliseconds)
        whole_step(job, rank)
        rank.item()

    return body


def late(milliseconds: Callable[[int, int], float]) -> Body:
    """Batches come late by so much (rank, step); the host reads the loss in each step."""

    def body(job: Job, rank: Rank, number: int) -> None:
        whole_step(job, rank, data_ms=milliseconds(rank.number, number))
        rank.item()

    return body


def drawn(rank: int, number: int) -> float:
    """Now the one loader has its batch at once, now it takes some steps' time."""
    return random.Random(17 * number + 5 * rank).choice([0.0, 0.0, 15.0, 30.0, 45.0])


def collected(job: Job, rank: Rank, number: int) -> None:
    """Collections that no step schedules: in each step those of two hosts of eight, for 40 ms."""
    load(rank)
    if rank.number in {2 * number % 8, (2 * number + 1) % 8}:
        stall(rank, 40.0)
    forward(rank)
    backward(job, rank)
    update(rank, UNIT * 2)
    rank.item()


def bucketed(job: Job, rank: Rank, number: int) -> None:
    """Each rank draws the bucket of lengths of its next batch by itself."""
    length = random.Random(7 * number + 31 * rank.number).choice([0.5, 1.0, 1.0, 2.0])
    whole_step(job, rank, length=length, unit=UNIT * (0.4 + 0.6 * length))


def together(*words: str) -> Callable[[Answer], str]:
    """Right where no rank is named or a candidate, and the words about all ranks are said."""

    def judge(answer: Answer) -> str:
        if answer.ranks("suspects"):
            return WRONG
        if answer.ranks("candidates"):
            return MISLEADING
        said = answer.says(*words)
        return RIGHT if said else WRONG if answer.verdict == "healthy" else OPEN

    return judge


REPORTS: list[Report] = [
    seen(
        "open-mmlab/OpenPCDet#520",
        "DDP on 4 ranks; every fourth step begins an epoch, and each process makes its iterator for 80 ms",
        "no rank; that all ranks pause in these steps, with the price",
        into(pauses(lambda _rank, number: number % 4 == 0, 80.0), 4, steps=8),
        together("all ranks"),
    ),
    seen(
        "pytorch/pytorch#31590",
        "DDP on 4 ranks; the first batches are at hand, and from the seventh of twelve steps on each comes 20 ms late",
        "the data loader, on all ranks alike; no rank",
        into(late(lambda _rank, number: 20.0 if number >= 10 else 0.0), 4, steps=12),
        no_suspect_but_cause("dataloader"),
    ),
    seen(
        "pairlab/SlotFormer#11",
        "DDP on 2 ranks; batches take from nothing to 45 ms, on each rank in its own steps",
        "the data loader, now of this rank and now of that one; no rank",
        into(late(drawn), 2, steps=12),
        no_suspect_but_cause("dataloader"),
        quick=True,
    ),
    seen(
        "marin-community/marin#9224",
        "8 ranks; in each step two of them collect garbage for 40 ms, never the same two as before",
        "stalls of the host that move from rank to rank; no single rank",
        into(collected, 8, steps=8),
        no_suspect_but_cause("host_stall"),
    ),
    seen(
        "facebookresearch/dinov3#39",
        "DDP on 4 ranks; all collect garbage in every third step, for 30 ms",
        "no rank; that all ranks pause in these steps, with the price",
        into(pauses(lambda _rank, number: number % 3 == 0, 30.0), 4, steps=9),
        together("all ranks"),
    ),
    seen(
        "lhotse-speech/lhotse#1309",
        "DDP on 8 ranks; each draws the bucket of its next batch by itself, of half to twice the usual length",
        "data imbalance that moves from step to step; no rank",
        into(bucketed, 8, steps=8),
        no_suspect_but_cause("data_imbalance"),
    ),
]
