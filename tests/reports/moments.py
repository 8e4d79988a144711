"""Jobs that are slow at times or by design of their steps: retries, compilation, evaluation, saving, logging."""

import random

from tests.reports.jobs import UNIT, Body, backward, forward, stall, whole_step
from tests.reports.places import retries
from tests.reports.report import MISLEADING, OPEN, RIGHT, WRONG, Answer, Report, accuses_none, named
from tests.reports.slow import DIFF, TRACES, into, no_suspect_but_cause, says, seen, shards, two_runs
from tests.shapes.job import Job
from tests.shapes.layers import load, update
from tests.shapes.rank import Rank


def full_in_turn(job: Job, rank: Rank, number: int) -> None:
    """Every card is nearly full: in each step the allocator of another rank starts again."""
    load(rank)
    if number % 8 == rank.number:
        retries(rank, 25.0)
    forward(rank)
    backward(job, rank)
    update(rank, UNIT * 2)
    rank.item()


def compiles_again(job: Job, rank: Rank, number: int) -> None:
    """Rank 3 misses the compiler's cache in every third step."""
    load(rank)
    if rank.number == 3 and number % 3 == 0:
        with rank.span("_compile.compile_inner (dynamo_timed)", "cpu_op"):
            stall(rank, 90.0)
    forward(rank)
    backward(job, rank)
    update(rank, UNIT * 2)


def evaluates(every: int) -> Body:
    """Rank 0 alone evaluates, in one of some steps; the others wait in the next reduction."""

    def body(job: Job, rank: Rank, number: int) -> None:
        whole_step(job, rank)
        if rank.number == 0 and number % every == 0:
            with rank.span("estimate_loss"):
                for _ in range(40):
                    forward(rank, 3)
                rank.item()

    return body


def saves_first_replica(job: Job, rank: Rank, number: int) -> None:
    """Ranks 0 to 3 hold the first replica and write it in one step, while the other replica waits."""
    whole_step(job, rank)
    rank.item()
    if rank.number < 4 and number == 6:
        with rank.span("torch.save"):
            stall(rank, 500.0 + 20.0 * rank.number)


def first_slow(job: Job, rank: Rank, number: int) -> None:
    """Other work loads the host in the first half of the run, so that each call takes longer on all ranks."""
    rank.host_pace = 6.0 if number < 16 else 1.0
    for _ in range(2):
        forward(rank, 6, unit=UNIT / 8)
    backward(job, rank, 6, unit=UNIT / 8)
    update(rank, UNIT * 2)
    rank.item()


def reports_loss(*, each: bool) -> Body:
    """Eight micro-batches; the loss's mean is reduced behind each of them, or once."""

    def body(job: Job, rank: Rank, number: int) -> None:
        for micro in range(8):
            load(rank)
            uneven = random.Random(1000 * number + 10 * micro + rank.number).uniform(0.6, 1.5)
            forward(rank, 2, length=uneven)
            if each or micro == 7:
                rank.collective(job.world, "allreduce", 2, 2, "Float")
            backward(job, rank, 2, length=uneven, bucket=10**7 if micro == 7 else 0)
        update(rank, UNIT * 2)

    return body


def logs(*, each: bool) -> Body:
    """The host reads the loss in each step, or never; it has nothing else to do meanwhile."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        whole_step(job, rank)
        if each:
            rank.item()

    return body


def same_step(answer: Answer) -> str:
    """Right where neither run is called slower or faster."""
    return WRONG if answer.verdict in {"slower", "faster"} else RIGHT


def in_one_step(ranks: tuple[int, ...], *words: str) -> object:
    """Right where none is accused and the work of one step is said; open where these ranks are the candidates."""

    def judge(answer: Answer) -> str:
        if answer.ranks("suspects"):
            return WRONG
        if answer.says(*words):
            return RIGHT
        return OPEN if answer.ranks("candidates") == ranks else MISLEADING

    return judge


REPORTS: list[Report] = [
    seen(
        "pytorch/pytorch#83917",
        "8 ranks with nearly full cards; in each step the allocator of another rank frees its blocks and starts again",
        "retries of the allocator that move from rank to rank; no single rank",
        into(full_in_turn, 8, steps=8),
        no_suspect_but_cause("memory"),
        quick=True,
    ),
    seen(
        "pytorch/pytorch#189330",
        "8 ranks, rank 3 misses the compiler's cache in every third step",
        "rank 3, compilation",
        into(compiles_again, 8, steps=9),
        named("suspects", (3,), "recompilation"),
    ),
    seen(
        "karpathy/nanoGPT#356",
        "DDP on 4 ranks, rank 0 alone evaluates in one of eight steps",
        "no slow rank; that step's additional work on rank 0",
        into(evaluates(7), 4, steps=8),
        accuses_none("suspects", "rank 0 works"),
    ),
    seen(
        "pytorch/pytorch#104081",
        "HSDP on 8 ranks: the first replica writes the checkpoint in one step while the second one waits",
        "no slow rank; that ranks 0 to 3 save in that step, or open with them",
        into(saves_first_replica, 8, steps=8, per_host=4),
        in_one_step((0, 1, 2, 3), "torch.save"),
    ),
    seen(
        "rwth-i6/returnn#1485",
        "4 ranks, 24 steps; each call of the hosts takes six times as long until the twelfth step",
        "faster from one step on, on all ranks",
        into(first_slow, 4, steps=24),
        says("changes at once"),
        ("tracekit", "trend", TRACES),
    ),
    seen(
        "modelscope/ms-swift#9966",
        "8 ranks with uneven micro-batches: the loss reduced behind each of eight, and once",
        "faster, by waiting of dp",
        two_runs(reports_loss(each=True), reports_loss(each=False), 8),
        says("dp waiting"),
        DIFF,
    ),
    seen(
        "Lightning-AI/pytorch-lightning#20995",
        "4 ranks: the host never reads the loss, and reads it in each step with nothing else to do",
        "the same step",
        two_runs(logs(each=False), logs(each=True), 4),
        same_step,
        DIFF,
    ),
    seen(
        "facebookresearch/fairscale#623",
        "FSDP on 8 ranks that gathers each layer when it is needed; asked what the step could take",
        "what hidden gathers would save",
        into(shards(exposed=True), 8),
        says("hidden communication"),
        ("tracekit", "floor", TRACES),
    ),
]
