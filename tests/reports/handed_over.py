"""Jobs that wait for what others make: rollouts, copies, messages, cards of a host, two causes at once."""

import random
from typing import Any
from unittest.mock import patch

from tests.reports.jobs import UNIT, Body, stall, whole_step
from tests.reports.overheads import slower_by
from tests.reports.report import MISLEADING, OPEN, RIGHT, WRONG, Answer, Report, named
from tests.reports.slow import DIFF, into, seen, two_runs
from tests.reports.uneven import Grouped, of_groups
from tests.shapes.calls import Group, Message
from tests.shapes.job import Job
from tests.shapes.layers import FLASH_BACKWARD, GEMM, layer, load, update
from tests.shapes.rank import Rank


def waits_for_rollouts(job: Job, rank: Rank, number: int) -> None:
    """Trainers have nothing to do until the rollouts of a step are there, which all of them learn at once."""
    with rank.span("wait_for_rollouts"):
        stall(rank, 60.0 + 3.0 * random.Random(number).random())
    whole_step(job, rank)
    rank.item()


def hosts_fabric(groups: dict[str, Group], rank: Rank) -> None:
    """HSDP: each host shards within itself; the switch of the second host moves 40 % of the others' bytes a second."""
    shard = groups["shard"]
    load(rank)
    for back in (False, True):
        for _ in range(6):
            size = 3 * 10**7
            moved = int(2 * size * (2.5 if rank.number >= 4 else 1.0))
            rank.collective(shard, "_allgather_base", size // 4, size, moved=moved)
            layer(rank, UNIT / 2, backward=back)
    rank.collective(groups["replicate"], "allreduce", 10**7, 10**7, "Float")
    rank.item()
    update(rank, UNIT * 2)


def other_algorithm(job: Job, rank: Rank, _number: int) -> None:
    """The library chose another kernel for attention's backward pass on rank 1, which takes half as long again."""
    kernel = rank.kernel

    def chosen(name: str, us: float, kind: str = "gemm", **more: Any) -> int:
        if name != FLASH_BACKWARD:
            return kernel(name, us, kind, **more)
        return kernel("fmha_cutlassB_bf16_aligned_64x64_k128_sm80(Params)", us * 1.5, kind, **more)

    with patch.object(rank, "kernel", chosen if rank.number == 1 else kernel):
        whole_step(job, rank)


def leaks(job: Job, rank: Rank, number: int) -> None:
    """Rank 5 keeps objects, so that its collector of garbage takes longer from step to step."""
    whole_step(job, rank)
    rank.item()
    if rank.number == 5:
        stall(rank, 1.2 * (number - 3))


def two_causes(job: Job, rank: Rank, number: int) -> None:
    """The loader of rank 2 is late in each second step, and the card of rank 5 is slower throughout."""
    late = 22.0 if rank.number == 2 and number % 2 else 0.0
    whole_step(job, rank, data_ms=late, unit=UNIT * (1.25 if rank.number == 5 else 1.0))
    rank.item()


def offloads(*, copies: bool) -> Body:
    """Tokens go to experts on other hosts; activations are copied to the host meanwhile, which slows the exchange."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        for back in (False, True):
            for _ in range(6):
                size = 3 * 10**7
                if copies:
                    name = "Memcpy DtoH (Device -> Pinned)"
                    more = {"op": "aten::copy_", "launch": "cudaMemcpyAsync", "copied": 4 * 10**7}
                    rank.kernel(name, 900.0, stream="offload", **more)
                splits = (str([size // 8] * 8),) * 2
                moved = 2 * size * (2 if copies else 1)
                rank.collective(job.world, "all_to_allv", size, size, moved=moved, splits=splits)
                layer(rank, UNIT, backward=back)
        update(rank, UNIT * 2)

    return body


def ring(groups: dict[str, Group], rank: Rank) -> None:
    """Context parallelism around a ring of eight: messages from 5 to 6 take a way with a quarter of the rate."""
    group = groups["CONTEXT_PARALLEL_GROUP"]
    after, before = group.beside(rank.number, 1), group.beside(rank.number, -1)
    size = 2 * 10**7
    load(rank)
    usual = rank.slow_link

    def slower(us: float, ranks: Any, key: Any, least: float, **more: Any) -> float:
        return usual(us, ranks, key, least, **more) * (4.0 if tuple(ranks) == (5, 6) else 1.0)

    with patch.object(rank, "slow_link", slower):
        for back in (False, True):
            for _ in range(3):
                for _ in range(7):
                    ends = [Message(True, after, size), Message(False, before, size)]
                    (left,) = rank.messages(group, ends, waited=False)
                    rank.kernel(GEMM, UNIT * (2 if back else 1))
                    rank.wait(left)
                layer(rank, UNIT / 2, backward=back)
        rank.collective(groups["world"], "allreduce", 10**7, 10**7, "Float")
    rank.item()
    update(rank, UNIT)


def named_only(*ranks: int) -> Any:
    """Right where these ranks are named and no other."""

    def judge(answer: Answer) -> str:
        found = set(answer.ranks("suspects"))
        if found - set(ranks) or answer.verdict == "healthy":
            return WRONG
        if found == set(ranks):
            return RIGHT
        return OPEN if found or set(ranks) & set(answer.ranks("candidates")) else MISLEADING

    return judge


def waits_alike(answer: Answer) -> str:
    """Right where none is named and the wait of all hosts is said; wrong where one is named, or nothing is said."""
    if answer.ranks("suspects"):
        return WRONG
    return RIGHT if answer.says("all devices are idle", "host_stall") else WRONG


REPORTS: list[Report] = [
    seen(
        "verl-project/verl-omni#321",
        "4 trainers that wait 60 ms in each step for the rollouts, all alike",
        "no rank; that all devices wait for their hosts",
        into(waits_for_rollouts, 4),
        waits_alike,
        quick=True,
    ),
    seen(
        "marin-community/marin#8934",
        "HSDP on two hosts of 4: gathers of the second host's group take 2.5 times as long",
        "slow links of ranks 4 to 7",
        of_groups(
            Grouped(
                {"shard": [range(4), range(4, 8)], "replicate": [(r, r + 4) for r in range(4)]}, hosts_fabric
            ),
            8,
        ),
        named("suspects", (4, 5, 6, 7), "network"),
    ),
    seen(
        "NVIDIA/caffe#369",
        "4 ranks: on rank 1 the library chose another kernel for attention's backward pass, half as long again",
        "rank 1, by that kernel",
        into(other_algorithm, 4),
        named("suspects", (1,), "fmha"),
    ),
    seen(
        "AnswerDotAI/ModernBERT#71",
        "8 ranks, 16 steps: rank 5 keeps objects, and stalls for longer from step to step",
        "rank 5, a stall of its host",
        into(leaks, 8, steps=16),
        named("suspects", (5,), "garbage_collection"),
    ),
    seen(
        "ultralytics/yolov5#854",
        "8 ranks: the loader of rank 2 is late in each second step, and the card of rank 5 is a quarter slower",
        "ranks 2 and 5, each with its cause",
        into(two_causes, 8, steps=8),
        named_only(2, 5),
    ),
    seen(
        "deepseek-ai/DeepEP#426",
        "8 ranks without and with activations copied to the host, beside which exchanges of tokens take twice as long",
        "slower, by transfers of the exchange",
        two_runs(offloads(copies=False), offloads(copies=True), 8),
        slower_by("transfer"),
        DIFF,
    ),
    seen(
        "NVIDIA/nccl#1817",
        "CP 8 around a ring of messages: the link from 5 to 6 has a quarter of the rate",
        "a slow link of 5 and 6",
        of_groups(Grouped({"CONTEXT_PARALLEL_GROUP": [range(8)]}, ring), 8),
        named_only(5, 6),
    ),
]
