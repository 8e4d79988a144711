"""Jobs that are slow by what surrounds their work: synchronisation, exposed communication, saving, other programs."""

from collections.abc import Callable
from dataclasses import replace

from tests.reports.by_structure import FLOOR, TREND
from tests.reports.jobs import HABITS, UNIT, Body, backward, forward, traced
from tests.reports.report import MISLEADING, RIGHT, WRONG, Answer, Report, named
from tests.reports.slow import DIFF, into, no_suspect_but_cause, says, seen, two_runs
from tests.shapes.calls import SyncCall
from tests.shapes.job import Job
from tests.shapes.layers import GRADIENT_NORM, layer, load, update
from tests.shapes.rank import Rank


def clips(*, each: bool) -> Body:
    """The norm of each parameter's gradient is read by the host, or that of all at once stays on the device."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        forward(rank)
        backward(job, rank)
        for _ in range(60):
            rank.kernel(GRADIENT_NORM, 6.0, "memory", op="aten::linalg_vector_norm")
            if each:
                rank.item()
                rank.host(60)
        update(rank, UNIT * 2)

    return body


def synchronised_norms(*, across: bool) -> Body:
    """Each norm gathers the statistics of all ranks, and its host waits for them; or each rank takes its own."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        for back in (False, True):
            for _ in range(12):
                layer(rank, UNIT / 2, backward=back)
                if across:
                    rank.collective(job.world, "_allgather_base", 513, 513 * 16, "Float")
                    rank.item()
        backward(job, rank, 2)
        update(rank, UNIT * 2)

    return body


def blocking(*, blocks: bool) -> Body:
    """The host waits for each reduction, or goes on launching."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        forward(rank)
        with rank.autograd():
            reduced = []
            for place in range(12):
                layer(rank, UNIT, backward=True)
                if place % 2:
                    reduced.append(
                        rank.collective(job.world, "allreduce", 10**7, 10**7, "Float", waited=blocks)
                    )
                    if blocks:
                        rank.sync("cudaStreamSynchronize")
            rank.wait(*([] if blocks else reduced))
        update(rank, UNIT * 2)

    return body


def reduced(*, last: bool) -> Body:
    """Gradients are reduced during the backward pass, or all behind it, as when buckets wait for a late parameter."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        forward(rank)
        backward(job, rank, 6, bucket=0 if last else 3 * 10**7)
        if last:
            for _ in range(3):
                rank.collective(job.world, "allreduce", 3 * 10**7, 3 * 10**7, "Float")
        update(rank, UNIT * 2)

    return body


def last_bucket(job: Job, rank: Rank, _number: int) -> None:
    """The reduction of the first layers' gradients has nothing left to run beside."""
    load(rank)
    forward(rank)
    backward(job, rank, 6, bucket=10**7)
    rank.collective(job.world, "allreduce", 9 * 10**7, 9 * 10**7, "Float")
    update(rank, UNIT * 2)


def finds_unused(*, searches: bool) -> Body:
    """Each forward pass is followed by a search of the graph and a reduction of the map of used parameters."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        forward(rank)
        if searches:
            with rank.span("DistributedDataParallel.search_unused_parameters"):
                rank.host(9000)
        backward(job, rank, 6)
        if searches:
            rank.collective(job.world, "allreduce", 900, 900, "Int")
            rank.item()
        update(rank, UNIT * 2)

    return body


def scales(*, over: str) -> Body:
    """FP8: each layer's largest values are reduced over all ranks, or stay on each."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        for back in (False, True):
            for _ in range(24):
                layer(rank, UNIT / 6, backward=back)
                if over == "all":
                    rank.collective(job.world, "allreduce", 256, 256, "Float")
        backward(job, rank, 2)
        update(rank, UNIT * 2)

    return body


def pageable(*, pinned: bool) -> Body:
    """Optimizer states return to the device from pageable memory at a sixth of the rate, or from pinned memory."""
    kind, factor = ("Pinned", 1.0) if pinned else ("Pageable", 6.0)

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        forward(rank)
        backward(job, rank)
        name = f"Memcpy HtoD ({kind} -> Device)"
        rank.kernel(name, 900.0 * factor, op="aten::copy_", launch="cudaMemcpyAsync", copied=4 * 10**7)
        update(rank, UNIT)

    return body


def one_queue(*, one: bool) -> Body:
    """FSDP's backward pass: gradients are scattered beside the next layer, or in line with it."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        forward(rank)
        left = []
        with rank.autograd():
            for _ in range(6):
                layer(rank, UNIT, backward=True)
                left.append(
                    rank.collective(
                        job.world, "_reduce_scatter_base", 2 * 10**7, 25 * 10**5, "Float", waited=one
                    )
                )
            rank.wait(*([] if one else left))
        update(rank, UNIT)

    return body


def contended(*, beside: bool) -> Body:
    """A long reduction runs beside products that become 1.8 times as long, or behind them."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        forward(rank)
        work = []
        for place in range(6):
            if beside and place % 2 == 0:
                work.append(
                    rank.collective(job.world, "allreduce", 6 * 10**7, 6 * 10**7, "Float", waited=False)
                )
            layer(rank, UNIT * (1.8 if beside else 1.0), backward=True)
        rank.wait(*work)
        if not beside:
            for _ in range(3):
                rank.collective(job.world, "allreduce", 6 * 10**7, 6 * 10**7, "Float")
        update(rank, UNIT)

    return body


def uploads(job: Job, rank: Rank, number: int) -> None:
    """A thread of rank 0 writes the checkpoint in four of twelve steps, and holds the interpreter's lock meanwhile."""
    rank.host_pace = 14.0 if rank.number == 0 and number in range(7, 11) else 1.0
    for _ in range(2):
        forward(rank, 6, unit=UNIT / 6)
    backward(job, rank, 6, unit=UNIT / 6)
    update(rank, UNIT * 2)
    rank.item()


def all_upload(job: Job, rank: Rank, number: int) -> None:
    """A thread of each rank uploads its part of a checkpoint in the second half of the steps."""
    rank.host_pace = 9.0 if number >= 16 else 1.0
    for _ in range(2):
        forward(rank, 6, unit=UNIT / 6)
    backward(job, rank, 6, unit=UNIT / 6)
    update(rank, UNIT * 2)
    rank.item()


def network_drops(job: Job, rank: Rank, number: int) -> None:
    """From the thirteenth step on, what moves between the hosts takes three times as long."""
    load(rank)
    forward(rank)
    for place in range(6):
        layer(rank, UNIT, backward=True)
        if place % 2:
            size = 4 * 10**7
            rank.collective(job.world, "allreduce", size, size, moved=2 * size * (3 if number >= 16 else 1))
    rank.item()
    update(rank, UNIT * 2)


def fragments(job: Job, rank: Rank, number: int) -> None:
    """The allocator of each rank frees blocks and asks for others in every layer, as sequences differ in length."""
    load(rank)
    for back in (False, True):
        for _ in range(6):
            for name, us in (("cudaFree", 500.0), ("cudaMalloc", 800.0)):
                begin = rank.host(0.5, exact=True)
                waits = [rank.tails.get("compute")] if name == "cudaFree" else []
                end = rank.host(us, waits, exact=True)
                rank.calls.append(SyncCall(end, rank.thread, name, begin))
            layer(rank, UNIT, backward=back)
    backward(job, rank, 2)
    update(rank, UNIT * 2)


def steady(job: Job, rank: Rank, _number: int) -> None:
    """The same without calls of the allocator."""
    load(rank)
    for back in (False, True):
        for _ in range(6):
            layer(rank, UNIT, backward=back)
    backward(job, rank, 2)
    update(rank, UNIT * 2)


def narrow_bus(slow: tuple[int, ...], factor: float) -> Body:
    """Large batches go to the device before each forward pass; the bus of some cards is narrower."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        us = 1500.0 * (factor if rank.number in slow else 1.0)
        rank.kernel(
            "Memcpy HtoD (Pinned -> Device)", us, op="aten::to", launch="cudaMemcpyAsync", copied=4 * 10**7
        )
        forward(rank)
        backward(job, rank)
        update(rank, UNIT * 2)

    return body


def small_shards(job: Job, rank: Rank, _number: int) -> None:
    """FSDP over many small layers: hosts need longer to launch a layer than devices to compute it."""
    for back in (False, True):
        for _ in range(60):
            rank.collective(job.world, "_allgather_base", 10**4, 8 * 10**4)
            rank.host(200)
            layer(rank, UNIT / 22, backward=back)
    update(rank, UNIT)


def slower_by(*words: str) -> Callable[[Answer], str]:
    """Right where the second run is slower and the words are said."""
    return lambda answer: (
        WRONG if answer.verdict != "slower" else RIGHT if answer.says(*words) else MISLEADING
    )


REPORTS: list[Report] = [
    seen(
        "pytorch/pytorch#60691",
        "8 ranks before and after the host reads the norm of each of 60 gradients",
        "slower, by time of the host",
        two_runs(clips(each=False), clips(each=True), 8),
        slower_by("host"),
        DIFF,
    ),
    seen(
        "pytorch/pytorch#36452",
        "16 ranks on two hosts without and with synchronised batch norms, which gather and wait in every layer",
        "slower, by small gathers of dp and the host behind them",
        two_runs(synchronised_norms(across=False), synchronised_norms(across=True), 16),
        slower_by("dp transfer", "dp waiting"),
        DIFF,
    ),
    seen(
        "pytorch/pytorch#50820",
        "8 ranks without and with NCCL_BLOCKING_WAIT: the host waits for each reduction",
        "slower, by communication of dp that nothing hides",
        two_runs(blocking(blocks=False), blocking(blocks=True), 8),
        slower_by("dp transfer"),
        DIFF,
    ),
    seen(
        "pytorch/pytorch#153404",
        "8 ranks: gradients reduced during the backward pass, and all behind it",
        "slower, by transfers of dp that nothing hides",
        two_runs(reduced(last=False), reduced(last=True), 8),
        slower_by("dp transfer"),
        DIFF,
    ),
    seen(
        "ecmwf/WeatherGenerator#1280",
        "8 ranks on two hosts of 4; the last bucket's reduction has nothing left to run beside",
        "what hiding it would save",
        into(last_bucket, 8, per_host=4),
        says("dp transfer, the largest", "hidden communication"),
        FLOOR,
    ),
    seen(
        "m2lines/Samudra#630",
        "8 ranks without and with a search for unused parameters in each step",
        "slower, by time of the host",
        two_runs(finds_unused(searches=False), finds_unused(searches=True), 8),
        slower_by("host"),
        DIFF,
    ),
    seen(
        "NVIDIA/TransformerEngine#431",
        "16 ranks on two hosts: FP8's largest values kept on each rank, and reduced over all in each layer",
        "slower, by many small reductions of dp",
        two_runs(scales(over="none"), scales(over="all"), 16),
        slower_by("dp transfer", "dp waiting"),
        DIFF,
    ),
    seen(
        "deepspeedai/DeepSpeed#5301",
        "4 ranks: states copied from pinned memory, and from pageable memory at a sixth of the rate",
        "slower, by copies from the host",
        two_runs(pageable(pinned=True), pageable(pinned=False), 4),
        slower_by("memcpy htod", "copies"),
        DIFF,
    ),
    seen(
        "verl-project/verl-omni#421",
        "8 ranks of FSDP: gradients scattered beside the next layer, and in line with it",
        "slower, by transfers of dp that nothing hides",
        two_runs(one_queue(one=False), one_queue(one=True), 8),
        slower_by("dp transfer"),
        DIFF,
    ),
    seen(
        "NVIDIA/nccl#1428",
        "8 ranks: reductions behind the products, and beside products that take 1.8 times as long there",
        "compute grows and transfers shrink; no rank",
        two_runs(contended(beside=False), contended(beside=True), 8),
        lambda answer: (
            WRONG if answer.says("rank 0 slower") else RIGHT if answer.says("compute") else MISLEADING
        ),
        DIFF,
    ),
    seen(
        "pytorch/pytorch#147039",
        "8 ranks, 12 steps: a thread of rank 0 saves in four, and each of its calls takes fourteen times as long",
        "rank 0, its host, or open with it",
        into(uploads, 8, steps=12),
        named("suspects", (0,), "host"),
    ),
    seen(
        "InternLM/InternEvo#65",
        "4 ranks, 24 steps: from the thirteenth on a thread of each uploads, and each call takes nine times as long",
        "slower from one step on, by the hosts of all ranks",
        into(all_upload, 4, steps=24),
        says("changes at once"),
        TREND,
    ),
    seen(
        "horovod/horovod#824",
        "16 ranks on two hosts, 24 steps: from the thirteenth on transfers take three times as long",
        "slower from one step on, by transfers of dp",
        into(network_drops, 16, steps=24),
        says("changes at once"),
        TREND,
    ),
    seen(
        "Lightning-AI/lightning-thunder#420",
        "8 ranks without and with calls of the allocator in each layer",
        "slower, by time of the host",
        two_runs(steady, fragments, 8),
        slower_by("host"),
        DIFF,
    ),
    seen(
        "pytorch/pytorch#94429",
        "FSDP on 8 ranks over many small layers; all hosts launch more slowly than devices compute",
        "no rank; launches on all hosts",
        into(small_shards, 8),
        no_suspect_but_cause("cpu_launch"),
    ),
    seen(
        "janhq/jan#183",
        "DDP on 2 ranks; the riser of card 1 runs at PCIe's first generation, its batches take eight times as long",
        "rank 1, its copies",
        into(narrow_bus((1,), 8.0), 2),
        named("suspects", (1,), "host_copies"),
    ),
    seen(
        "ROCm/legacy-rocm-build#2020",
        "DDP on 4 cards of AMD, two at half of the others' PCIe rate",
        "ranks 2 and 3, their copies",
        lambda folder: traced(
            folder / "traces", 4, narrow_bus((2, 3), 2.0), habits=replace(HABITS, amd=True)
        ),
        named("suspects", (2, 3), "host_copies"),
    ),
]
