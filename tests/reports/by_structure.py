"""Jobs whose model, optimizer or devices give the ranks unlike work, as the traces of their authors show them."""

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.reports.jobs import UNIT, Body, backward, forward, traced, whole_step
from tests.reports.report import MISLEADING, OPEN, RIGHT, WRONG, Answer, Report, named
from tests.reports.slow import TRACES, into, no_suspect_but_cause, says, seen
from tests.reports.uneven import Grouped, of_groups
from tests.shapes.calls import Group
from tests.shapes.experts import Experts
from tests.shapes.job import Job
from tests.shapes.layers import GEMM, GEMM_OUT, attention, load, mlp, update
from tests.shapes.megatron import Megatron, Stage
from tests.shapes.rank import Rank


def owners(products: tuple[int, ...]) -> Body:
    """Each rank orthogonalises the matrices it owns, in so many products, and all gather the weights."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        forward(rank)
        backward(job, rank)
        with rank.span("Optimizer.step#Muon.step"):
            for _ in range(products[rank.number]):
                rank.kernel(GEMM, UNIT, op="aten::mm")
        rank.collective(job.world, "_allgather_base", 10**6, len(products) * 10**6)

    return body


def states(owned: tuple[float, ...]) -> Body:
    """The optimizer's states lie on some ranks alone, so that these step them while the others wait for the weights."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        forward(rank)
        backward(job, rank)
        if owned[rank.number]:
            update(rank, UNIT * 10 * owned[rank.number])
        for owner in range(len(owned)):
            if owned[owner]:
                rank.collective(job.world, "broadcast", 4 * 10**6, 4 * 10**6)

    return body


def images(job: Job, rank: Rank, number: int) -> None:
    """Each rank encodes the images of its own batch, none to forty, before the language model's even work."""
    load(rank)
    count = random.Random(100 * number + rank.number).choice([0, 2, 4, 8, 20, 40])
    with rank.span("vision_tower"):
        for _ in range(count):
            rank.kernel(GEMM_OUT, UNIT / 2)
    forward(rank)
    backward(job, rank)
    update(rank, UNIT * 2)


def replies(job: Job, rank: Rank, number: int) -> None:
    """Each rank generates replies of its own lengths, a few products a token, before it trains on them."""
    load(rank)
    for _ in range(random.Random(100 * number + rank.number).randrange(10, 40)):
        for _ in range(3):
            rank.kernel(GEMM, UNIT / 4)
        rank.item()
    forward(rank)
    backward(job, rank)
    update(rank, UNIT * 2)


def packed(job: Job, rank: Rank, number: int) -> None:
    """Each rank packs its samples into as many micro-batches as their tokens need, two to six."""
    count = random.Random(100 * number + rank.number).randrange(2, 7)
    for micro in range(count):
        load(rank)
        forward(rank, 4)
        backward(job, rank, 4, bucket=3 * 10**7 if micro == count - 1 else 0)
    update(rank, UNIT * 2)


def regularises(job: Job, rank: Rank, number: int) -> None:
    """Each second step regularises as well, where card 2 takes half as long again."""
    load(rank)
    forward(rank)
    backward(job, rank)
    if number % 2:
        unit = UNIT * (1.5 if rank.number == 2 else 1.0)
        forward(rank, unit=unit)
        backward(job, rank, unit=unit)
    update(rank, UNIT * 2)
    rank.item()


def generations(slow: tuple[int, ...], factor: float) -> Body:
    """Some cards are of an older generation: their kernels have other names and take longer."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        kernel = rank.kernel

        def older(name: str, us: float, kind: str = "gemm", **more: Any) -> int:
            name = name.replace("sm90_xmma_gemm_bf16bf16", "ampere_bf16_s16816gemm").replace(
                "nvjet_tst", "turing"
            )
            return kernel(name, us * (1.0 if more.get("copied") else factor), kind, **more)

        with patch.object(rank, "kernel", older if rank.number in slow else kernel):
            whole_step(job, rank)

    return body


CARDS = ("NVIDIA RTX A6000", "NVIDIA RTX A6000", "NVIDIA GeForce RTX 2080 Ti", "NVIDIA GeForce RTX 2080 Ti")


def of_two_models(folder: Path) -> None:
    """One host with two cards of each of two models."""
    traced(folder / "traces", 4, generations((2, 3), 1.8))
    for path in sorted((folder / "traces").glob("*.json.gz")):
        document = json.loads(gzip.decompress(path.read_bytes()))
        document["deviceProperties"] = [{"id": n, "name": name} for n, name in enumerate(CARDS)]
        path.write_bytes(gzip.compress(json.dumps(document).encode()))


class Recomputing(Megatron):
    """Stages that run out of memory recompute their layers in the backward pass, the others do not."""

    def member(self, meshes: Any, rank: Rank, lengths: Any) -> "Stage":
        return Recomputed(self, meshes, rank, lengths)


class Recomputed(Stage):
    """One rank in one step."""

    def backward(self) -> None:
        if self.stage == 0:
            length = self.lengths[self.replica, self.backwards]
            with self.rank.autograd():
                for _ in range(self.layers):
                    self.attention(length, backward=False)
                    self.mlp(backward=False)
        super().backward()


def pipeline(kind: type[Megatron] = Megatron, **more: Any) -> Megatron:
    """A pipeline without tensor parallelism."""
    given = {"tp": 1, "pp": 4, "micro": 8, "layers": 3, "unit": UNIT, "activations": 4096 * 2048} | more
    return kind(**given, parameters=10**7, synchronous=False)


def hot(*, expert: int | None = None, uneven: float = 0.1) -> Experts:
    """Experts of whom one may get half as many tokens again as the others."""
    return Experts(
        ep=4,
        layers=4,
        unit=UNIT * 2,
        activations=2048 * 2048,
        parameters=4 * 10**6,
        micro=2,
        uneven=uneven,
        hot=expert,
    )


def drifting(groups: dict[str, Group], rank: Rank) -> None:
    """The router collapses: the tokens of expert 2 grow from step to step."""
    block = groups["EXPERT_MODEL_PARALLEL_GROUP"]
    load(rank)
    more = 1.0 + (0.12 * (rank.step_number - 3) if block.place(rank.number) == 2 else 0.0)
    came = int(2 * 10**6 * more)
    for _ in range(6):
        attention(rank, UNIT)
        for sizes in ((2 * 10**6, came), (came, 2 * 10**6)):
            splits = tuple(str([size // 4] * 4) for size in sizes)
            rank.collective(block, "all_to_allv", *sizes, splits=splits)
            if sizes[1] == came:
                rank.kernel(GEMM, UNIT * 2 * more)
    rank.collective(groups["world"], "allreduce", 10**7, 10**7, "Float")
    rank.item()
    update(rank, UNIT)


def encoder_apart(groups: dict[str, Group], rank: Rank) -> None:
    """Ranks 0 and 1 encode images, of unlike numbers in each step, for the language model on ranks 2 to 7."""
    number = rank.step_number
    if rank.number < 2:
        load(rank)
        count = random.Random(31 * number + rank.number).randrange(80, 360)
        for _ in range(count):
            mlp(rank, UNIT / 6)
    rank.collective(groups["bridge"], "_allgather_base", 10**6, 8 * 10**6)
    if rank.number >= 2:
        forward(rank)
        for place in range(6):
            mlp(rank, UNIT, backward=True)
            if place % 2:
                rank.collective(groups["llm"], "allreduce", 8 * 10**6, 8 * 10**6, "Float")
        update(rank, UNIT * 2)
    else:
        rank.collective(groups["encoder"], "allreduce", 8 * 10**6, 8 * 10**6, "Float")
        update(rank, UNIT)


def more_work(*ranks: int) -> Callable[[Answer], str]:
    """Right where these ranks' additional or larger work is named; misleading where a clock or the like is."""

    def judge(answer: Answer) -> str:
        found = answer.ranks("suspects")
        if set(found) - set(ranks) or answer.verdict == "healthy":
            return WRONG
        if not found:
            return OPEN
        suspects = answer.document["suspects"]
        assert isinstance(suspects, list)
        by = {suspect["mechanisms"][0]["name"] for suspect in suspects if suspect["mechanisms"]}
        return RIGHT if found == ranks and by <= {"more_work", "one_kernel"} else MISLEADING

    return judge


def by_experts(answer: Answer) -> str:
    """Right where tokens of experts are the cause; wrong where a device of another rank than the hot ones is named."""
    if answer.verdict == "healthy" or {rank % 4 for rank in answer.ranks("suspects")} - {2}:
        return WRONG
    if answer.document.get("cause") in {"expert_imbalance", "data_imbalance"} or answer.says("expert"):
        return RIGHT
    return OPEN if answer.verdict == "inconclusive" else MISLEADING


def stage(*ranks: int) -> Callable[[Answer], str]:
    """Right where these ranks are the long stage."""

    def judge(answer: Answer) -> str:
        if set(answer.ranks("suspects")) - set(ranks) or answer.verdict == "healthy":
            return WRONG
        return RIGHT if answer.says("stage_imbalance", "stage imbalance") else MISLEADING

    return judge


def encoders(answer: Answer) -> str:
    """Right where the encoders' ranks or their uneven images are named; wrong where the language model's are."""
    if set(answer.ranks("suspects")) - {0, 1} or answer.verdict == "healthy":
        return WRONG
    if answer.ranks("suspects") or answer.document.get("cause") == "data_imbalance":
        return RIGHT
    return OPEN if answer.verdict == "inconclusive" else MISLEADING


FLOOR = ("tracekit", "floor", TRACES)
TREND = ("tracekit", "trend", TRACES)
BLOCKS = {"EXPERT_MODEL_PARALLEL_GROUP": [range(4), range(4, 8)]}
APART = {"encoder": [(0, 1)], "llm": [range(2, 8)], "bridge": [range(8)]}

REPORTS: list[Report] = [
    seen(
        "NVIDIA/Megatron-LM#2162",
        "distributed Muon on 4 ranks: the matrices that rank 0 owns need twice the products of the others'",
        "rank 0, by its additional work in the optimizer; no slow device",
        into(owners((80, 40, 40, 40)), 4),
        more_work(0),
    ),
    seen(
        "NVIDIA/Megatron-LM#2163",
        "8 ranks: the last two hold the optimizer's states of embedding and head besides their share",
        "ranks 6 and 7, by their additional work in the optimizer; no slow device",
        into(states((1.0,) * 6 + (3.0, 3.0)), 8),
        more_work(6, 7),
    ),
    seen(
        "hpcaitech/ColossalAI#3954",
        "8 ranks and 5 large parameters: ranks 5 to 7 hold no optimizer state and wait",
        "ranks 0 to 4 have work that the others do not; no slow device",
        into(states((1.0,) * 5 + (0.0,) * 3), 8),
        more_work(0, 1, 2, 3, 4),
        quick=True,
    ),
    seen(
        "ByteDance-Seed/VeOmni#280",
        "8 ranks; each encodes the images of its own batch, from none to forty, before even work on text",
        "data imbalance that moves from step to step; no rank",
        into(images, 8, steps=10),
        no_suspect_but_cause("data_imbalance"),
    ),
    seen(
        "NVIDIA-NeMo/RL#4007",
        "8 ranks; each generates replies of its own lengths before it trains on them",
        "data imbalance that moves from step to step; no rank",
        into(replies, 8, steps=8),
        no_suspect_but_cause("data_imbalance"),
        quick=True,
    ),
    seen(
        "THUDM/slime#1860",
        "8 ranks; each packs its samples into two to six micro-batches",
        "data imbalance that moves from step to step; no rank",
        into(packed, 8, steps=8),
        no_suspect_but_cause("data_imbalance"),
    ),
    seen(
        "amazon-science/gan-control#5",
        "4 ranks; each second step regularises as well, where the card of rank 2 takes half as long again",
        "rank 2, compute",
        into(regularises, 4, steps=8),
        named("suspects", (2,), "gpu_compute"),
        quick=True,
    ),
    seen(
        "NVIDIA-NeMo/Megatron-Bridge#4609",
        "two encoder ranks with unlike images in each step feed a language model on six ranks, which waits for them",
        "the encoders, by their images; no rank of the language model",
        of_groups(Grouped(APART, encoder_apart), 8),
        encoders,
    ),
    seen(
        "huggingface/pytorch-image-models#580",
        "4 ranks on two cards of one model and two of an older one; kernels of these take 1.8 times as long",
        "ranks 2 and 3, their cards' model",
        of_two_models,
        named("suspects", (2, 3), "other_device"),
        quick=True,
    ),
    seen(
        "apache/mxnet#1380",
        "2 ranks on unlike cards: one takes 2.5 times as long, with kernels of other names",
        "rank 1, compute",
        into(generations((1,), 2.5), 2, per_host=1),
        named("suspects", (1,), "gpu_compute"),
    ),
    seen(
        "NousResearch/torchtitan#55",
        "EP 4, DP 8: one expert of each group gets half as many tokens again in every layer",
        "tokens of experts; no slow device",
        into(hot(expert=2), 8),
        by_experts,
    ),
    seen(
        "verl-project/verl#4103",
        "EP 4 on 8 ranks, 24 steps: one expert's tokens grow from step to step",
        "the step grows steadily, by work of the ranks with that expert",
        lambda folder: traced(folder / "traces", 8, Grouped(BLOCKS, drifting), steps=24),
        says("drift"),
        TREND,
    ),
    seen(
        "AMD-AGI/Primus#965",
        "PP 4, DP 2: the first stage alone recomputes its layers",
        "stage imbalance, the first stage",
        lambda folder: traced(folder / "traces", 8, pipeline(Recomputing)),
        stage(0, 1),
    ),
    seen(
        "sail-sg/zero-bubble-pipeline-parallelism#21",
        "PP 4, DP 2 with four micro-batches",
        "the bubble is the largest gain",
        lambda folder: traced(folder / "traces", 8, pipeline(micro=4)),
        says("without bubble", "without the bubble", "without pipeline bubble"),
        FLOOR,
    ),
]
