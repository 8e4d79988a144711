"""Jobs whose hosts, cards, links or roles differ, as the traces of their authors show them."""

import gzip
import json
import random
from pathlib import Path

from tests.reports.jobs import UNIT, Body, backward, forward, traced, whole_step
from tests.reports.report import MISLEADING, OPEN, RIGHT, WRONG, Answer, Report, named
from tests.reports.slow import DIFF, into, says, seen, two_runs
from tests.reports.uneven import Grouped, among, of_groups
from tests.shapes.calls import Group, SyncCall
from tests.shapes.job import Job
from tests.shapes.layers import GEMM, layer, load, update
from tests.shapes.rank import Rank


def retries(rank: Rank, milliseconds: float) -> None:
    """The allocator frees its blocks, which waits for the device, and asks for new ones."""
    for name, share in (("cudaFree", 0.4), ("cudaMalloc", 0.6)):
        begin = rank.host(0.5, exact=True)
        waits = [rank.tails.get("compute")] if name == "cudaFree" else []
        end = rank.host(1000.0 * milliseconds * share, waits, exact=True)
        rank.calls.append(SyncCall(end, rank.thread, name, begin))


def full_card(job: Job, rank: Rank, _number: int) -> None:
    """FSDP: the card of rank 3 is nearly full, so that its allocator starts again in each second layer."""
    load(rank)
    for place in range(6):
        if rank.number == 3 and place % 2:
            retries(rank, 4.0)
        rank.collective(job.world, "_allgather_base", 3 * 10**6, 24 * 10**6)
        layer(rank, UNIT)
    backward(job, rank)
    update(rank, UNIT * 2)


def far_memory(job: Job, rank: Rank, _number: int) -> None:
    """Optimizer states stay on the host; rank 2's are in memory of the other socket."""
    load(rank)
    forward(rank)
    backward(job, rank)
    slower = 3.0 if rank.number == 2 else 1.0
    copied = {"op": "aten::copy_", "launch": "cudaMemcpyAsync", "copied": 10**8}
    rank.kernel("Memcpy DtoH (Device -> Pinned)", 2500.0 * slower, **copied)  # type: ignore[arg-type]
    rank.kernel("Memcpy HtoD (Pinned -> Device)", 2500.0 * slower, **copied)  # type: ignore[arg-type]
    update(rank, UNIT * 2)


def warm_host(job: Job, rank: Rank, _number: int) -> None:
    """All cards of the second host are throttled."""
    whole_step(job, rank, unit=UNIT * (1.3 if rank.number >= 4 else 1.0))


def slow_disk(job: Job, rank: Rank, number: int) -> None:
    """Loaders of the second host read from a slow disk: every second batch is late there."""
    whole_step(job, rank, data_ms=45.0 if rank.number >= 4 and number % 2 else 0.0)
    rank.item()


def one_loader(job: Job, rank: Rank, number: int) -> None:
    """The loader of rank 1 cannot keep up in most steps."""
    whole_step(job, rank, data_ms=14.0 + 6.0 * (number % 3) if rank.number == 1 and number % 4 else 0.0)
    rank.item()


def over_hosts(factor: float) -> Body:
    """Two hosts: what moves between them takes `factor` times as long."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        forward(rank)
        for place in range(6):
            layer(rank, UNIT, backward=True)
            if place % 2:
                size = 4 * 10**7
                rank.collective(job.world, "allreduce", size, size, moved=int(2 * size * factor))
        update(rank, UNIT * 2)

    return body


def flapping(groups: dict[str, Group], rank: Rank) -> None:
    """Replicas are reduced in pairs between hosts; the port of ranks 3 and 11 is lost for a moment in some steps."""
    group = groups["DATA_PARALLEL_GROUP"]
    load(rank)
    forward(rank)
    late = group.ranks[0] == 3 and rank.step_number in {5, 9}
    for place in range(6):
        layer(rank, UNIT, backward=True)
        if place % 2:
            size = 3 * 10**7
            moved = 2 * size * (12 if late and place == 3 else 1)
            rank.collective(group, "allreduce", size, size, moved=moved)
    rank.collective(groups["world"], "allreduce", 1, 1, "Float")
    update(rank, UNIT * 2)


def rollouts(groups: dict[str, Group], rank: Rank) -> None:
    """Ranks 0 to 3 train, ranks 4 to 7 generate meanwhile, which takes longer; then all get the new weights."""
    if rank.number < 4:
        load(rank)
        forward(rank)
        for place in range(6):
            layer(rank, UNIT, backward=True)
            if place % 2:
                rank.collective(groups["actor"], "allreduce", 8 * 10**6, 8 * 10**6, "Float")
        update(rank, UNIT * 2)
    else:
        longest = random.Random(31 * rank.step_number + rank.number // 2).randrange(260, 340)
        for _ in range(longest):
            for _ in range(2):
                rank.kernel(GEMM, UNIT / 4)
                rank.collective(groups["engine"], "allreduce", 10**5, 10**5)
        rank.item()
    rank.collective(groups["weights"], "broadcast", 5 * 10**7, 5 * 10**7)


def on_xpu(folder: Path) -> None:
    """DDP on 4 ranks with oneCCL, which annotates no kernel; rank 2's card is 1.3 times as slow."""
    traced(folder / "traces", 4, one_slow)
    for path in sorted((folder / "traces").glob("*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        for event in document["traceEvents"]:
            if event.get("cat") == "kernel" and "nccl" in event["name"].lower():
                event["name"] = "oneccl_reduce_base<float, 2, 16, 1, 1, 2>"
                kept = ("External id", "correlation", "device", "stream", "context")
                event["args"] = {key: event["args"][key] for key in kept if key in event["args"]}
            if event.get("cat") == "cuda_runtime":
                event["cat"] = "xpu_runtime"
        path.write_bytes(gzip.compress(json.dumps(document).encode()))


def one_slow(job: Job, rank: Rank, _number: int) -> None:
    """Rank 2 is slower."""
    whole_step(job, rank, unit=UNIT * (1.3 if rank.number == 2 else 1.0))


def not_among(*innocent: int) -> object:
    """Wrong where one of these is accused; right where the roles, their work or the longer ones are named."""

    def judge(answer: Answer) -> str:
        found = set(answer.ranks("suspects"))
        if found & set(innocent) or answer.verdict == "healthy":
            return WRONG
        if found or answer.says("role", "other program", "generate"):
            return RIGHT
        return OPEN if answer.verdict == "inconclusive" else MISLEADING

    return judge


IN_PAIRS = {"DATA_PARALLEL_GROUP": [(r, r + 8) for r in range(8)]}
ROLES = {"actor": [range(4)], "engine": [(4, 5), (6, 7)], "weights": [range(8)]}
SECOND_HOST = (4, 5, 6, 7)

REPORTS: list[Report] = [
    seen(
        "pytorch/pytorch#65078",
        "FSDP on 8 ranks; the card of rank 3 is nearly full, its allocator frees and asks again in each second layer",
        "rank 3, memory",
        into(full_card, 8),
        named("suspects", (3,), "memory"),
    ),
    seen(
        "deepspeedai/DeepSpeed#1576",
        "4 ranks with states on the host; those of rank 2 are in memory of the other socket, copies take three times",
        "rank 2, its copies",
        into(far_memory, 4),
        named("suspects", (2,), "host_copies"),
    ),
    seen(
        "kubeflow/kubeflow#68",
        "two hosts of 4 ranks; all cards of the second are throttled",
        "ranks 4 to 7, compute",
        into(warm_host, 8, per_host=4),
        named("suspects", SECOND_HOST, "gpu_compute"),
    ),
    seen(
        "mosaicml/streaming#643",
        "two hosts of 4 ranks; every second batch comes 45 ms late on the second, in 24 steps",
        "ranks 4 to 7, their loaders, or open with them",
        into(slow_disk, 8, steps=24, per_host=4),
        named("suspects", SECOND_HOST, "dataloader"),
    ),
    seen(
        "open-mmlab/mmpretrain#350",
        "4 ranks; the loader of rank 1 is late in three of four steps",
        "rank 1, its loader",
        into(one_loader, 4, steps=10),
        named("suspects", (1,), "dataloader"),
    ),
    seen(
        "aws/aws-ofi-nccl#33",
        "16 ranks on two hosts before and after an upgrade; what moves between hosts takes 1.6 times as long",
        "slower, by transfers of dp",
        two_runs(over_hosts(1.0), over_hosts(1.6), 16),
        says("dp transfer"),
        DIFF,
    ),
    seen(
        "NVIDIA/nccl#1557",
        "two hosts of 8, reduced in pairs; one transfer of 3 with 11 takes twelve times as long in two of six steps",
        "the link of 3 and 11 at times, or open with them",
        of_groups(Grouped(IN_PAIRS, flapping), 16),
        among(3, 11),
    ),
    seen(
        "OpenRLHF/OpenRLHF#949",
        "ranks 0 to 3 train, ranks 4 to 7 generate for longer in two engines, then all share the weights",
        "the ranks that generate, by their work; no trainer",
        of_groups(Grouped(ROLES, rollouts), 8),
        not_among(0, 1, 2, 3),
    ),
    seen(
        "intel/torch-xpu-ops#5384",
        "DDP on 4 ranks with oneCCL and its kernels without arguments; rank 2 is 1.3 times as slow",
        "rank 2, compute",
        on_xpu,
        named("suspects", (2,), "gpu_compute"),
        quick=True,
    ),
]
