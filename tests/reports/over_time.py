"""Jobs whose cards, hosts, links or code change with time or fall behind, as the traces of their authors show them."""

import random
from typing import Any
from unittest.mock import patch

from tests.reports.by_structure import TREND
from tests.reports.jobs import UNIT, Body, backward, forward, stall, traced, whole_step
from tests.reports.report import MISLEADING, OPEN, RIGHT, WRONG, Answer, Report, named
from tests.reports.slow import into, no_suspect_but_cause, seen
from tests.reports.uneven import Grouped, among, of_groups
from tests.shapes.calls import Group
from tests.shapes.forms import replay
from tests.shapes.job import Job
from tests.shapes.layers import FLASH_FORWARD, GEMM, GEMM_OUT, NORM, POINTWISE, layer, load, update
from tests.shapes.rank import Rank


def heats(*ranks: int) -> Body:
    """Some cards grow hot from the ninth step on, and their kernels longer by four in a hundred a step."""

    def body(job: Job, rank: Rank, number: int) -> None:
        hot = rank.number in ranks and number > 12
        whole_step(job, rank, unit=UNIT * (1.0 + (0.04 * (number - 12) if hot else 0.0)))
        rank.item()

    return body


def falls_back(job: Job, rank: Rank, number: int) -> None:
    """From the ninth step on, attention of rank 2 is no longer compiled: matrix products and softmax by themselves."""
    load(rank)
    kernel = rank.kernel

    def eager(name: str, us: float, kind: str = "gemm", **more: Any) -> int:
        if name != FLASH_FORWARD:
            return kernel(name, us, kind, **more)
        kernel(GEMM, us * 0.8, op="aten::bmm")
        kernel(POINTWISE, us * 1.2, "memory", op="aten::_softmax")
        return kernel(GEMM_OUT, us * 0.8, op="aten::bmm")

    with patch.object(rank, "kernel", eager if rank.number == 2 and number > 11 else kernel):
        forward(rank)
    backward(job, rank)
    update(rank, UNIT * 2)
    rank.item()


def small_layers(rank: Rank, *, captured: bool) -> None:
    """Many small kernels, each launched by itself or all by one graph."""
    kernels = [(GEMM, 9.0, "gemm"), (NORM, 3.0, "memory"), (POINTWISE, 2.0, "memory")] * 100
    if captured:
        replay(rank, kernels)
        return
    for name, us, kind in kernels:
        rank.kernel(name, us, kind)


def without_graph(job: Job, rank: Rank, _number: int) -> None:
    """All ranks but the second replay a captured graph; that one launches each kernel, as its capture failed."""
    load(rank)
    for _ in range(3):
        small_layers(rank, captured=rank.number != 1)
    backward(job, rank, 2)
    update(rank, UNIT * 2)
    rank.item()


def _layers(groups: dict[str, Group], tp: Group, rank: Rank) -> None:
    """Six layers forwards and backwards with their sums over `tp`, the sum of gradients, and the update."""
    for back in (False, True):
        for _ in range(6):
            layer(rank, UNIT, backward=back)
            rank.collective(tp, "allreduce", 10**6, 10**6)
    rank.collective(groups["DATA_PARALLEL_GROUP"], "allreduce", 10**7, 10**7, "Float")
    rank.item()
    update(rank, UNIT * 2)


def one_reads(groups: dict[str, Group], rank: Rank) -> None:
    """The first rank of each tensor group reads the batch and sends it; that of the second waits for its server."""
    tp = groups["TENSOR_MODEL_PARALLEL_GROUP"]
    if tp.place(rank.number) == 0:
        late = rank.number == 4 and rank.step_number % 2
        load(rank, 25_000.0 if late else 120.0)
    rank.collective(tp, "broadcast", 4097, 4097, "Long")
    _layers(groups, tp, rank)


def port_comes_back(groups: dict[str, Group], rank: Rank) -> None:
    """Gradients are reduced in pairs between hosts; from the ninth step on, 5 and 13 have a third of the rate."""
    group = groups["DATA_PARALLEL_GROUP"]
    load(rank)
    forward(rank)
    slower = 3 if group.ranks[0] == 5 and rank.step_number > 11 else 1
    for place in range(6):
        layer(rank, UNIT, backward=True)
        if place % 2:
            size = 3 * 10**7
            rank.collective(group, "allreduce", size, size, "Float", moved=4 * size * slower)
    rank.collective(groups["world"], "allreduce", 1, 1, "Float")
    rank.item()
    update(rank, UNIT * 2)


def all_write(job: Job, rank: Rank, number: int) -> None:
    """All ranks write their part of a checkpoint in two of eight steps; that of rank 6 takes three times as long."""
    whole_step(job, rank)
    rank.item()
    if number in {6, 10}:
        with rank.span("FileSystemWriter.write_data"):
            stall(rank, (300.0 if rank.number == 6 else 100.0) * rank.noise(0.03))


def sliced(job: Job, rank: Rank, _number: int) -> None:
    """Another program has a part of the time of rank 0's card: one kernel in twelve lasts 2 ms longer."""
    kernel = rank.kernel
    drawn = random.Random(7 * rank.step_number)

    def shared(name: str, us: float, kind: str = "gemm", **more: Any) -> int:
        return kernel(name, us + (2000.0 if drawn.random() < 1 / 12 else 0.0), kind, **more)

    with patch.object(rank, "kernel", shared if rank.number == 0 else kernel):
        whole_step(job, rank)


def same_files(groups: dict[str, Group], rank: Rank) -> None:
    """All ranks of a tensor group read the same files at once; in each step another of them comes last, by 20 ms."""
    tp = groups["TENSOR_MODEL_PARALLEL_GROUP"]
    last = random.Random(11 * rank.step_number + tp.ranks[0]).choice(tp.ranks)
    load(rank, 20_000.0 if rank.number == last else 2000.0 * rank.noise(0.3))
    _layers(groups, tp, rank)


def one_half(groups: dict[str, Group], rank: Rank) -> None:
    """Forced balance that begins with the same experts on every rank: ranks 0 to 3 of 8 get all tokens."""
    block = groups["EXPERT_MODEL_PARALLEL_GROUP"]
    load(rank)
    size = 2 * 10**6
    out, back = ([size // 4] * 4 + [0] * 4, [size // 4] * 8 if rank.number < 4 else [0] * 8)
    for backward_pass in (False, True):
        for _ in range(5):
            layer(rank, UNIT / 2, backward=backward_pass)
            came = sum(back)
            moved = 2 * size
            rank.collective(
                block, "all_to_allv", size, max(came, 1), moved=moved, splits=(str(out), str(back))
            )
            for _ in range(2 if came else 0):
                rank.kernel(GEMM, UNIT * (2 if backward_pass else 1))
            rank.collective(
                block, "all_to_allv", max(came, 1), size, moved=moved, splits=(str(back), str(out))
            )
    rank.collective(groups["world"], "allreduce", 10**7, 10**7, "Float")
    rank.item()
    update(rank, UNIT)


def drifts_by(*words: str) -> Any:
    """Right where the run drifts to slower and the words are said."""
    return lambda answer: (
        WRONG if answer.verdict not in {"slower", "drift"} else RIGHT if answer.says(*words) else MISLEADING
    )


def at_saves(answer: Answer) -> str:
    """Right where rank 6 is named or told of in the steps that save; wrong where another is."""
    found = answer.ranks("suspects")
    if set(found) - {6}:
        return WRONG
    if answer.says("filesystemwriter"):
        return RIGHT
    return OPEN if not found and 6 in answer.ranks("candidates") else MISLEADING


def first_half(answer: Answer) -> str:
    """Right where tokens of experts are the cause; wrong where a device is, or nothing."""
    if answer.verdict == "healthy" or set(answer.ranks("suspects")) - {0, 1, 2, 3}:
        return WRONG
    if answer.says("expert_imbalance", "tokens"):
        return RIGHT
    return OPEN if answer.verdict == "inconclusive" else MISLEADING


TENSOR = {
    "TENSOR_MODEL_PARALLEL_GROUP": [range(4), range(4, 8)],
    "DATA_PARALLEL_GROUP": [(r, r + 4) for r in range(4)],
}

REPORTS: list[Report] = [
    seen(
        "tensorflow/tensorflow#40042",
        "4 ranks, 24 steps: from the ninth on the card of rank 3 grows hot, its kernels longer from step to step",
        "rank 3, compute",
        into(heats(3), 4, steps=24),
        named("suspects", (3,), "gpu_compute"),
    ),
    seen(
        "apache/mxnet#223",
        "the same on the cards of all 4 ranks",
        "the step grows steadily, by compute of all ranks",
        into(heats(0, 1, 2, 3), 4, steps=24),
        drifts_by("compute"),
        TREND,
    ),
    seen(
        "vllm-project/vllm#27178",
        "4 ranks, 16 steps: from the ninth on rank 2 has used up its recompilations, and its attention is not compiled",
        "rank 2, by kernels that the others do not have",
        into(falls_back, 4, steps=16),
        named("suspects", (2,), "kernels", "more_work"),
    ),
    seen(
        "roboflow/rf-detr#1468",
        "4 ranks: all but the second replay captured graphs; that one launches each kernel, as its capture failed",
        "rank 1, its launches",
        into(without_graph, 4),
        named("suspects", (1,), "launch", "graph"),
        quick=True,
    ),
    seen(
        "NVIDIA/Megatron-LM#885",
        "TP 4, DP 2: one rank of each tensor group reads and broadcasts; rank 4 reads 25 ms in each second step",
        "rank 4, its loader",
        lambda folder: traced(folder / "traces", 8, Grouped(TENSOR, one_reads), steps=8),
        named("suspects", (4,), "dataloader"),
    ),
    seen(
        "NVIDIA/nccl#2157",
        "two hosts of 8, 16 steps: from the ninth on the pair of 5 and 13 has a third of the rate, as a port came back",
        "a slow link of 5 and 13",
        lambda folder: traced(
            folder / "traces",
            16,
            Grouped({"DATA_PARALLEL_GROUP": [(r, r + 8) for r in range(8)]}, port_comes_back),
            steps=16,
        ),
        among(5, 13),
    ),
    seen(
        "pytorch/torchtitan#1301",
        "8 ranks write their parts of a checkpoint in two of eight steps; that of rank 6 takes three times as long",
        "rank 6, by what it writes in these steps",
        into(all_write, 8, steps=8),
        at_saves,
        quick=True,
    ),
    seen(
        "NVIDIA/apex#162",
        "4 ranks; another program has a part of the time of rank 0's card",
        "rank 0, compute",
        into(sliced, 4, steps=8),
        named("suspects", (0,), "gpu_compute", "shared"),
    ),
    seen(
        "NVIDIA-NeMo/Megatron-Bridge#2405",
        "TP 4, DP 2: all ranks of a tensor group read the same files at once, and another one comes last in each step",
        "the data loader; no single rank",
        lambda folder: traced(folder / "traces", 8, Grouped(TENSOR, same_files), steps=10),
        no_suspect_but_cause("dataloader"),
    ),
    seen(
        "vllm-project/afd-plugin#156",
        "EP 8: forced balance that begins with the same experts on every rank gives all tokens to ranks 0 to 3",
        "tokens of experts; no slow device",
        of_groups(Grouped({"EXPERT_MODEL_PARALLEL_GROUP": [range(8)]}, one_half), 8),
        first_half,
    ),
]
