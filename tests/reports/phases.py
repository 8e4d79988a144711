"""Jobs that are slow in phases, on a part of a machine, or where hosts meet, as their authors' traces show them."""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from tests.reports.in_turn import together
from tests.reports.jobs import UNIT, Body, backward, forward, stall, traced, whole_step
from tests.reports.places import retries
from tests.reports.report import Report, accuses_none, named
from tests.reports.slow import into, no_suspect_but_cause, seen
from tests.reports.uneven import Grouped, among, of_groups
from tests.shapes.calls import Group, SyncCall
from tests.shapes.job import Job
from tests.shapes.layers import layer, load, update
from tests.shapes.megatron import Megatron, Meshes, Stage
from tests.shapes.rank import Rank

SHARDS = {"shard": [range(4), range(4, 8)], "outer": [(n, n + 4) for n in range(4)]}
HEADS = {"CONTEXT_PARALLEL_GROUP": SHARDS["shard"], "DATA_PARALLEL_GROUP": SHARDS["outer"]}
COPIED = {"op": "aten::copy_", "launch": "cudaMemcpyAsync", "copied": 4 * 10**7}


def local_steps(groups: dict[str, Group], rank: Rank) -> None:
    """Two replicas train alone for four steps and average then; the cards of the second one are slower."""
    load(rank)
    for back in (False, True):
        for _ in range(6):
            rank.collective(groups["shard"], "_allgather_base", 10**6, 4 * 10**6)
            layer(rank, UNIT * (1.25 if rank.number >= 4 else 1.0), backward=back)
    update(rank, UNIT * 2)
    if rank.step_number % 4 == 0:
        rank.collective(groups["outer"], "allreduce", 3 * 10**7, 3 * 10**7, "Float")
    rank.item()


def launches(pace: Callable[[int, int], float]) -> Body:
    """Small kernels, so that hosts set the pace: each call of theirs takes `pace` (rank, step) times as long."""

    def body(job: Job, rank: Rank, number: int) -> None:
        rank.host_pace = pace(rank.number, number)
        for _ in range(2):
            forward(rank, 6, unit=UNIT / 8)
        backward(job, rank, 6, unit=UNIT / 8)
        update(rank, UNIT * 2)
        rank.item()

    return body


def unbound(rank: int, number: int) -> float:
    """Processes wander over the sockets: in each step two of eight hosts are slow."""
    return 8.0 if rank in random.Random(number).sample(range(8), 2) else 1.0


def staging(job: Job, rank: Rank, number: int) -> None:
    """Behind each save the first four ranks copy their part to the host while the next step computes."""
    busy = rank.number < 4 and number % 4 == 1
    for _ in range(3 if busy else 0):
        rank.kernel("Memcpy DtoH (Device -> Pinned)", 4000.0, stream="staging", **COPIED)
    whole_step(job, rank, unit=UNIT * (1.7 if busy else 1.0))
    rank.item()


def phases(slow: Sequence[int], backwards: float, forwards: float = 1.0, *, always: bool = False) -> Body:
    """Some cards are throttled: in three of six steps, or `always`; each pass takes so many times as long."""

    def body(job: Job, rank: Rank, number: int) -> None:
        hot = rank.number in slow and (always or number % 6 < 3)
        load(rank)
        forward(rank, unit=UNIT * (forwards if hot else 1.0))
        backward(job, rank, unit=UNIT * (backwards if hot else 1.0))
        update(rank, UNIT * 2)
        rank.item()

    return body


def heads(groups: dict[str, Group], rank: Rank) -> None:
    """Attention heads are exchanged for tokens; those of the second rank have more blocks to attend to."""
    cp, size = groups["CONTEXT_PARALLEL_GROUP"], 10**6
    splits = (str([size // 4] * 4),) * 2
    load(rank)
    for back in (False, True):
        for _ in range(6):
            rank.collective(cp, "all_to_allv", size, size, splits=splits)
            layer(rank, UNIT, (1.0, 1.8, 1.0, 0.9)[cp.place(rank.number)], backward=back)
            rank.collective(cp, "all_to_allv", size, size, splits=splits)
    rank.collective(groups["DATA_PARALLEL_GROUP"], "allreduce", 2 * 10**7, 2 * 10**7, "Float")
    update(rank, UNIT * 2)


def maps(job: Job, rank: Rank, _number: int) -> None:
    """FSDP with expandable segments: the allocator of rank 3 unmaps and maps memory in each second layer."""
    load(rank)
    for place in range(6):
        for name, us in (("cuMemUnmap", 1600.0), ("cuMemCreate", 1400.0), ("cuMemMap", 1000.0)):
            if rank.number == 3 and place % 2:
                begin = rank.host(0.5, exact=True)
                waits = [rank.tails.get("compute")] if name == "cuMemUnmap" else []
                rank.calls.append(SyncCall(rank.host(us, waits, exact=True), rank.thread, name, begin))
        rank.collective(job.world, "_allgather_base", 3 * 10**6, 24 * 10**6)
        layer(rank, UNIT)
    backward(job, rank)
    update(rank, UNIT * 2)


def tuned(job: Job, rank: Rank, _number: int) -> None:
    """Each rank times the variants of each kernel by itself and keeps another one; those of rank 0 are slowest."""
    kernel = rank.kernel

    def chosen(name: str, us: float, kind: str = "gemm", **more: Any) -> int:
        variant = random.Random(f"{rank.number} {name}").choice([1.0, 1.0, 1.05, 1.12, 1.3])
        return kernel(name, us * (1.0 if more.get("copied") else variant), kind, **more)

    with patch.object(rank, "kernel", chosen):
        whole_step(job, rank)


def in_slots(job: Job, rank: Rank, number: int) -> None:
    """All ranks save in two of eight steps; a lock lets two write at once, in another order each time."""
    whole_step(job, rank)
    rank.item()
    if number in {6, 10}:
        turn = random.Random(number).sample(range(8), 8).index(rank.number) // 2
        with rank.span("FileSystemWriter.write_data"):
            stall(rank, 30.0 * (turn + 1))


def tables(job: Job, rank: Rank, _number: int) -> None:
    """Embedding tables are placed whole: those of rank 2 have three times the look-ups, and as many rows to send."""
    more = [3 if n == 2 else 1 for n in range(8)]
    load(rank)
    for back in (False, True):
        for _ in range(4 * more[rank.number]):
            rank.kernel("split_embedding_codegen_forward_kernel", 300.0, "memory", op="fbgemm::lookup")
        out, came = [250_000 * more[rank.number]] * 8, [250_000 * n for n in more]
        ins, outs = (came, out) if back else (out, came)
        sizes = {"moved": 12 * 10**6, "splits": (str(outs), str(ins))}
        rank.collective(job.world, "all_to_allv", sum(ins), sum(outs), **sizes)
        for _ in range(3):
            layer(rank, UNIT, backward=back)
    backward(job, rank, 2)
    update(rank, UNIT)


def joined(job: Job, rank: Rank, number: int) -> None:
    """Rank 3 has no batch for the last two of eight steps, and only reduces what the others have."""
    if rank.number == 3 and number > 9:
        for _ in range(3):
            rank.collective(job.world, "allreduce", 8 * 10**6, 8 * 10**6, "Float")
    else:
        whole_step(job, rank)
    rank.item()


def weights(job: Job, rank: Rank, _number: int) -> None:
    """The weights of each layer come from the host beside the layer before; those of rank 2 take 2.5 times as long."""
    load(rank)
    for back in (False, True):
        for _ in range(6):
            us = 900.0 * (2.5 if rank.number == 2 else 1.0)
            name = "Memcpy HtoD (Pinned -> Device)"
            node = rank.kernel(name, us, stream="prefetch", **COPIED)
            rank.wait_stream("compute", node=node)
            layer(rank, UNIT, backward=back)
    backward(job, rank, 2)
    update(rank, UNIT)


def first_call(job: Job, rank: Rank, number: int) -> None:
    """The first reduction sets up the communicator, on all ranks alike."""
    load(rank)
    forward(rank)
    if number == 4:
        stall(rank, 700.0 + 30.0 * random.Random(rank.number).random())
    backward(job, rank)
    update(rank, UNIT * 2)


def hosts_meet(late_ms: float) -> Body:
    """Hosts agree over MPI behind each step; that of rank 5 comes `late_ms` late."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        whole_step(job, rank)
        rank.item()
        if rank.number == 5:
            stall(rank, late_ms)
        with rank.span("mpi barrier", "cpu_op"):
            everybody = rank.transfer((job.world.number, -99, rank.count(-99)), lambda: 60.0)
            rank.graph.follow(rank.host(5.0, exact=True), everybody)
            rank.host(1.0, [everybody], exact=True)

    return body


class Packed(Stage):
    """A stage with packed sequences: attention differs between micro-batches of a replica, and between replicas."""

    def __init__(
        self, config: Megatron, meshes: Meshes, rank: Rank, lengths: dict[tuple[int, int], float]
    ) -> None:
        drawn = {
            (d, m): random.Random(1000 * rank.step_number + 50 * d + m).uniform(0.3, 3.0) for d, m in lengths
        }
        super().__init__(config, meshes, rank, drawn)


class Full(Stage):
    """A stage; the first one holds most activations, so that its allocators start again for each micro-batch."""

    def forward(self) -> None:
        """One micro-batch forward."""
        if self.first:
            retries(self.rank, 4.0)
        super().forward()


class Racks(Stage):
    """A stage; messages from the second host to the third pass another rack, and take six times as long."""

    def schedule(self) -> None:
        """All micro-batches, with slow messages where they leave the rack."""
        usual = self.rank.slow_link

        def slower(us: float, ranks: Any, key: Any, least: float, **more: Any) -> float:
            far = bool(more) and {rank // 4 for rank in ranks} == {1, 2}
            return usual(us, ranks, key, least, **more) * (6.0 if far else 1.0)

        with patch.object(self.rank, "slow_link", slower):
            super().schedule()


@dataclass(frozen=True)
class Staged(Megatron):
    """Megatron with stages of another kind."""

    kind: type[Stage] = Stage

    def member(self, meshes: Meshes, rank: Rank, lengths: dict[tuple[int, int], float]) -> Stage:
        """One rank in one step."""
        return self.kind(self, meshes, rank, lengths)


def staged(kind: type[Stage], world: int, tp: int, pp: int, layers: int, size: int, per_host: int = 8) -> Any:
    """Makes the traces of a pipeline in `traces`."""
    shape = Staged(tp, pp, 6, layers, UNIT, size, 10**7, False, kind=kind)
    return lambda folder: traced(folder / "traces", world, shape, per_host=per_host)


def long_job(shape: Grouped) -> Any:
    """Makes the traces of sixteen steps of a job with smaller groups in `traces`."""
    return lambda folder: traced(folder / "traces", 8, shape, steps=16)


REPORTS: list[Report] = [
    seen(
        "meta-pytorch/torchft#233",
        "two replicas of 4 ranks that average in each fourth of 16 steps; all cards of the second are slower",
        "ranks 4 to 7, compute",
        long_job(Grouped(SHARDS, local_steps)),
        named("suspects", (4, 5, 6, 7), "gpu_compute"),
    ),
    seen(
        "NVIDIA/TensorRT-LLM#18117",
        "8 ranks with processes bound to no socket: in each step two other hosts need eight times as long a call",
        "hosts that are slow in turn; no single rank",
        into(launches(unbound), 8, steps=12),
        no_suspect_but_cause("host_stall", "cpu_launch"),
    ),
    seen(
        "areal-project/AReaL#1083",
        "two hosts of 8 ranks; the processes of each second socket need five times as long a call",
        "ranks 4 to 7 and 12 to 15, their hosts",
        into(launches(lambda rank, _number: 5.0 if rank % 8 > 3 else 1.0), 16),
        named("suspects", (4, 5, 6, 7, 12, 13, 14, 15), "cpu_launch"),
    ),
    seen(
        "marin-community/marin#9180",
        "two hosts of 4 ranks, 12 steps: in four a save takes the cores of the second host",
        "ranks 4 to 7, their hosts, or open with them",
        into(
            launches(lambda rank, number: 10.0 if rank > 3 and 6 < number < 11 else 1.0),
            8,
            steps=12,
            per_host=4,
        ),
        named("suspects", (4, 5, 6, 7), "host"),
    ),
    seen(
        "NVIDIA-NeMo/Automodel#3131",
        "8 ranks, 12 steps: the first four copy their state to the host beside three of the steps",
        "ranks 0 to 3 in these steps, or open with them",
        into(staging, 8, steps=12),
        among(0, 1, 2, 3),
    ),
    seen(
        "lllyasviel/ControlNet#454",
        "two hosts of 4 ranks, 12 steps: the cards of the second lose power in three of six steps",
        "ranks 4 to 7, compute",
        into(phases((4, 5, 6, 7), 1.4, 1.4), 8, steps=12, per_host=4),
        named("suspects", (4, 5, 6, 7), "gpu_compute"),
    ),
    seen(
        "flashinfer-ai/flashinfer#2899",
        "8 ranks; the clock of rank 2 falls within each step, so that its backward pass takes 1.35 times as long",
        "rank 2, compute",
        into(phases((2,), 1.35, always=True), 8),
        named("suspects", (2,), "gpu_compute"),
    ),
    seen(
        "NVIDIA/Megatron-LM#2282",
        "PP 2, DP 4 with packed sequences: attention of each micro-batch takes from a third to thrice the usual time",
        "data imbalance; no rank",
        staged(Packed, 8, 1, 2, 3, 2 * 10**6),
        no_suspect_but_cause("data_imbalance"),
    ),
    seen(
        "xdit-project/xDiT#727",
        "CP 4, DP 2 that exchanges heads for tokens; the heads of the second rank of each group need 1.8 times as long",
        "attention is uneven over the context ranks, by design; no rank",
        of_groups(Grouped(HEADS, heads), 8),
        no_suspect_but_cause("data_imbalance"),
    ),
    seen(
        "pytorch/pytorch#96995",
        "FSDP on 8 ranks with expandable segments: the allocator of rank 3 unmaps and maps memory in each second layer",
        "rank 3, memory",
        into(maps, 8),
        named("suspects", (3,), "spends its time allocating memory"),
    ),
    seen(
        "NovaSky-AI/SkyRL#1470",
        "PP 4, DP 2: the allocators of the first stage, which holds most activations, start again for each micro-batch",
        "ranks 0 and 1, memory, or open with them",
        staged(Full, 8, 1, 4, 2, 2 * 10**6),
        among(0, 1),
    ),
    seen(
        "NVIDIA/Megatron-LM#6966",
        "8 ranks that each time the variants of kernels and keep another one; rank 0 has the slowest",
        "rank 0, compute",
        into(tuned, 8),
        named("suspects", (0,), "gpu_compute"),
    ),
    seen(
        "NVIDIA/nccl#1453",
        "PP 3 over three hosts of 4 ranks; what moves to the third host, in another rack, takes six times as long",
        "slow links of ranks 4 to 7 with 8 to 11",
        staged(Racks, 12, 4, 3, 3, 32 * 10**6, 4),
        among(*range(4, 12)),
    ),
    seen(
        "InternLM/xtuner#1703",
        "8 ranks save in two of eight steps, two at once, in another order each time",
        "ranks that save later in turn; no single rank",
        into(in_slots, 8, steps=8),
        accuses_none("suspects", "in turn", "write_data"),
    ),
    seen(
        "meta-pytorch/torchrec#3773",
        "embedding tables on 8 ranks: those of rank 2 have three times the look-ups",
        "rank 2, by its additional work; no slow device",
        into(tables, 8),
        named("suspects", (2,), "more_work"),
    ),
    seen(
        "pytorch/pytorch#42577",
        "DDP on 4 ranks, rank 3 has no batch for the last two of eight steps and only reduces",
        "no rank delays the others",
        into(joined, 4, steps=8),
        together("no rank delays the others"),
    ),
    seen(
        "NVIDIA/Megatron-LM#6491",
        "4 ranks with weights on the host, copied beside the layer before; those of rank 2 take 2.5 times as long",
        "rank 2, its copies",
        into(weights, 4),
        named("suspects", (2,), "host_copies"),
    ),
    seen(
        "pytorch/pytorch#136248",
        "8 ranks; the first reduction of the recording sets up the communicator for 0.7 s on each",
        "no rank delays the others",
        into(first_call, 8),
        together("no rank delays the others"),
    ),
    seen(
        "NVIDIA/srt-slurm#332",
        "8 ranks with hosts that agree over MPI behind each step; that of rank 5 comes 12 ms late",
        "rank 5, its host, or open with it",
        into(hosts_meet(12.0), 8),
        among(5),
    ),
]
