"""Jobs with ranks that do unlike work, or with unlike hosts and links, as the traces of their authors show them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.reports.jobs import UNIT, backward, forward, stall, traced, whole_step
from tests.reports.report import MISLEADING, OPEN, RIGHT, WRONG, Answer, Report, accuses_none, named
from tests.reports.slow import into, no_suspect_but_cause, says, seen
from tests.shapes.calls import Group, SyncCall
from tests.shapes.job import Job
from tests.shapes.layers import ADAM, layer, load, update
from tests.shapes.rank import Rank

Split = dict[int, Group]


@dataclass(frozen=True)
class Grouped:
    """A program whose ranks call collectives in smaller groups: (description, members of each group) by name."""

    groups: dict[str, Sequence[Sequence[int]]]
    body: Callable[[dict[str, Group], Rank], None]

    def program(self, job: Job, steps: Sequence[int]) -> None:
        """Tell each rank its calls."""
        made = {name: job.split(name, members) for name, members in self.groups.items()}
        for rank in job.ranks:
            mine = {name: split[rank.number] for name, split in made.items() if rank.number in split}
            mine["world"] = job.world
            for number in steps:
                with rank.step(number):
                    self.body(mine, rank)


def contiguous(groups: dict[str, Group], rank: Rank) -> None:
    """Context parallelism that cuts each sequence into four pieces: causal attention grows with the piece."""
    place = groups["CONTEXT_PARALLEL_GROUP"].place(rank.number)
    length = (2 * place + 1) / 4
    load(rank)
    for back in (False, True):
        for _ in range(6):
            rank.collective(groups["CONTEXT_PARALLEL_GROUP"], "_allgather_base", 10**6, 4 * 10**6)
            layer(rank, UNIT, length, backward=back)
    rank.collective(groups["DATA_PARALLEL_GROUP"], "allreduce", 2 * 10**7, 2 * 10**7, "Float")
    update(rank, UNIT * 2)


def averages(job: Job, rank: Rank, _number: int) -> None:
    """Rank 0 alone keeps a moving average of the weights: some more kernels behind each update."""
    whole_step(job, rank)
    if rank.number == 0:
        for _ in range(12):
            rank.kernel(
                ADAM.replace("FusedAdamMathFunctor", "LerpFunctor"),
                400.0,
                "memory",
                op="aten::_foreach_lerp_",
            )


def next_epoch(job: Job, rank: Rank, number: int) -> None:
    """In one step the loader's workers start again on all ranks."""
    whole_step(job, rank, data_ms=0.0 if number != 7 else 380.0 + 12.0 * (rank.number % 3))


def reduced_in_pairs(late: Sequence[int], factor: float) -> Callable[[dict[str, Group], Rank], None]:
    """Gradients are reduced in groups of two; those of some groups move as if they were larger."""

    def body(groups: dict[str, Group], rank: Rank) -> None:
        group = groups["DATA_PARALLEL_GROUP"]
        load(rank)
        forward(rank)
        for place in range(6):
            layer(rank, UNIT, backward=True)
            if place % 2:
                size = 6 * 10**7
                moved = int(4 * size * (factor if group.ranks[0] in late else 1.0))
                rank.collective(group, "allreduce", size, size, "Float", moved=moved)
        rank.collective(groups["world"], "allreduce", 1, 1, "Float")
        update(rank, UNIT * 2)

    return body


def tensor_pairs(groups: dict[str, Group], rank: Rank) -> None:
    """Each layer is reduced in pairs of cards; the last pair has half of the others' rate."""
    pair = groups["TENSOR_MODEL_PARALLEL_GROUP"]
    load(rank)
    for back in (False, True):
        for _ in range(6):
            layer(rank, UNIT / 2, backward=back)
            size = 3 * 10**7
            rank.collective(pair, "allreduce", size, size, moved=2 * size * (2 if pair.ranks[0] == 6 else 1))
    rank.collective(groups["DATA_PARALLEL_GROUP"], "allreduce", 10**7, 10**7, "Float")
    update(rank, UNIT * 2)


def updates_on_host(job: Job, rank: Rank, _number: int) -> None:
    """The optimizer runs on the host; that of rank 3 on cores of the other socket."""
    load(rank)
    forward(rank)
    backward(job, rank)
    rank.item()
    with rank.span("Optimizer.step#DeepSpeedCPUAdam.step"):
        stall(rank, 34.0 if rank.number == 3 else 20.0)
    rank.kernel(
        "Memcpy HtoD (Pinned -> Device)", 900.0, op="aten::copy_", launch="cudaMemcpyAsync", copied=2 * 10**7
    )


def capped(job: Job, rank: Rank, _number: int) -> None:
    """One card of four is capped: products and attention take 1.6 times as long, work on memory does not."""
    kernel = rank.kernel

    def slower(name: str, us: float, kind: str = "gemm", **more: Any) -> int:
        return kernel(name, us * (1.6 if kind == "gemm" and not more.get("copied") else 1.0), kind, **more)

    with patch.object(rank, "kernel", slower if rank.number == 2 else kernel):
        whole_step(job, rank)


def one_host_compiles(job: Job, rank: Rank, number: int) -> None:
    """The second of two hosts has no cached kernels and compiles in the first recorded step."""
    load(rank)
    if number == 4 and rank.number >= 4:
        stall(rank, 900.0)
    forward(rank)
    backward(job, rank)
    update(rank, UNIT * 2)


def one_host_compiles_often(job: Job, rank: Rank, number: int) -> None:
    """The second of two hosts compiles in every second step."""
    load(rank)
    if number % 2 == 0 and rank.number >= 4:
        stall(rank, 100.0)
    forward(rank)
    backward(job, rank)
    update(rank, UNIT * 2)


def collect_together(job: Job, rank: Rank, number: int) -> None:
    """All ranks collect garbage in the same steps, as they are asked to."""
    whole_step(job, rank)
    rank.item()
    if number % 3 == 0:
        stall(rank, 60.0 + rank.noise(0.05))


def empties_cache(job: Job, rank: Rank, _number: int) -> None:
    """All ranks give their cached memory back behind each step, which waits for the device."""
    whole_step(job, rank)
    begin = rank.host(0.5, exact=True)
    end = rank.host(15_000.0, [rank.tails.get("compute")], exact=True)
    rank.calls.append(SyncCall(end, rank.thread, "cudaFree", begin))


def few_cores(job: Job, rank: Rank, _number: int) -> None:
    """The second of two hosts lends the job too few cores: each call of its ranks takes five times as long."""
    if rank.number >= 4:
        rank.host_pace = 5.0
    for _ in range(3):
        forward(rank, 6, unit=UNIT / 8)
    backward(job, rank, 6, unit=UNIT / 8)
    update(rank, UNIT * 2)
    rank.item()


def among(*ranks: int) -> Callable[[Answer], str]:
    """Right where only some of these are named; wrong where another is, or all is healthy."""

    def judge(answer: Answer) -> str:
        found = set(answer.ranks("suspects"))
        if found - set(ranks) or answer.verdict == "healthy":
            return WRONG
        return RIGHT if found else OPEN

    return judge


def uneven_attention(answer: Answer) -> str:
    """Right where attention is said to be uneven; wrong where others than the last pieces are accused."""
    if (
        set(answer.ranks("suspects")) - {3, 7}
        or answer.verdict == "healthy"
        or answer.says("longest rank changes")
    ):
        return WRONG
    if answer.document.get("cause") == "data_imbalance":
        return RIGHT
    return MISLEADING if answer.ranks("suspects") and not answer.says("attention") else OPEN


def of_groups(shape: Grouped, world: int) -> Callable[[Path], None]:
    """Makes the traces of a job with smaller groups in `traces`."""
    return lambda folder: traced(folder / "traces", world, shape)


REPORTS: list[Report] = [
    seen(
        "zhuzilin/ring-flash-attention#2",
        "CP 4, DP 2: each rank has one piece of the sequence, so that causal attention grows with the piece",
        "attention is uneven over the context ranks, by design; no slow device",
        of_groups(
            Grouped(
                {
                    "CONTEXT_PARALLEL_GROUP": [range(4), range(4, 8)],
                    "DATA_PARALLEL_GROUP": [(r, r + 4) for r in range(4)],
                },
                contiguous,
            ),
            8,
        ),
        uneven_attention,
    ),
    seen(
        "lucidrains/ema-pytorch#9",
        "DDP on 4 ranks; rank 0 alone keeps a moving average of the weights",
        "rank 0, with work that others do not have",
        into(averages, 4),
        named("suspects", (0,), "lerp", "more work", "more kernels"),
    ),
    seen(
        "open-mmlab/mmpretrain#196",
        "DDP on 8 ranks; in one of eight steps an epoch begins, and all loaders take 0.4 s",
        "the data loader, on all ranks alike; no rank",
        into(next_epoch, 8, steps=8),
        no_suspect_but_cause("dataloader"),
    ),
    seen(
        "NVIDIA/nccl#820",
        "two hosts of 8; gradients are reduced in pairs between them, and cards 4 and 5 share a card of the network",
        "slow links of 4 to 12 and 5 to 13",
        of_groups(
            Grouped({"DATA_PARALLEL_GROUP": [(r, r + 8) for r in range(8)]}, reduced_in_pairs((4, 5), 2.0)),
            16,
        ),
        among(4, 5, 12, 13),
    ),
    seen(
        "NVIDIA/nccl#1435",
        "TP 2, DP 4 on one host: the pair of cards 6 and 7 has half of the other pairs' rate",
        "a slow link between 6 and 7",
        of_groups(
            Grouped(
                {
                    "TENSOR_MODEL_PARALLEL_GROUP": [(r, r + 1) for r in range(0, 8, 2)],
                    "DATA_PARALLEL_GROUP": [range(0, 8, 2), range(1, 8, 2)],
                },
                tensor_pairs,
            ),
            8,
        ),
        among(6, 7),
    ),
    seen(
        "deepspeedai/DeepSpeed#7474",
        "4 ranks with optimizers on the host; that of rank 3 runs on cores of the other socket",
        "rank 3, its host",
        into(updates_on_host, 4),
        named("suspects", (3,)),
    ),
    seen(
        "l4rz/reverse-engineering-dell-idrac-to-get-rid-of-gpu-throttling#3",
        "4 ranks; rank 2 has half of the others' power, its products take 1.6 times as long",
        "rank 2, compute",
        into(capped, 4),
        named("suspects", (2,), "gpu_compute"),
    ),
    seen(
        "karpathy/nanochat#722",
        "two hosts of 4 ranks; the second has no cached kernels and compiles 0.9 s in the first recorded step",
        "ranks 4 to 7 in that step; none of them is slow in the others",
        into(one_host_compiles, 8, per_host=4),
        accuses_none("suspects", "ranks 4, 5, 6, 7 work"),
    ),
    seen(
        "pytorch/pytorch#108971",
        "two hosts of 4 ranks; the second compiles for 100 ms in three of six steps",
        "ranks 4 to 7, or open with them",
        into(one_host_compiles_often, 8, per_host=4),
        named("suspects", (4, 5, 6, 7)),
        quick=True,
    ),
    seen(
        "verl-project/verl#5549",
        "8 ranks; all collect garbage in the same steps, two of six",
        "no rank; the host pauses on all ranks alike",
        into(collect_together, 8),
        lambda answer: WRONG if answer.ranks("suspects") else RIGHT,
    ),
    seen(
        "huggingface/transformers#31372",
        "4 ranks; all empty their memory cache behind each step",
        "no rank; time in which the device waits for the host, in cudaFree",
        into(empties_cache, 4),
        says("without allocator calls"),
        ("tracekit", "floor", "{}/traces"),
    ),
    seen(
        "ISEEKYAN/Megatron-LM#188",
        "two hosts of 4 ranks; the second lends too few cores, so that each call takes five times as long",
        "ranks 4 to 7, their hosts",
        into(few_cores, 8, per_host=4),
        named("suspects", (4, 5, 6, 7)),
    ),
]
