"""Jobs that are slow, as the traces of their authors would show them."""

import gzip
import json
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.reports.jobs import (
    HABITS,
    UNIT,
    Body,
    backward,
    forward,
    stall,
    traced,
    whole_step,
    without,
)
from tests.reports.report import MISLEADING, OPEN, RIGHT, WRONG, Answer, Report, accuses_none, named
from tests.shapes.job import Job
from tests.shapes.layers import FLASH_BACKWARD, layer, load, update
from tests.shapes.megatron import Megatron
from tests.shapes.rank import Rank


def late_batches(job: Job, rank: Rank, number: int) -> None:
    """Four loader workers, each slower than four steps: every fourth batch is late, on all ranks; the loss is read."""
    whole_step(job, rank, data_ms=0.0 if number % 4 else 40.0)
    rank.item()


def collects(job: Job, rank: Rank, number: int) -> None:
    """Each rank's garbage collector runs once in its own step, for 25 ms; the host reads the loss in each step."""
    load(rank)
    if number % 8 == rank.number:
        stall(rank, 25.0)
    forward(rank)
    backward(job, rank)
    update(rank, UNIT * 2)
    rank.item()


def callbacks(job: Job, rank: Rank, number: int) -> None:
    """Rank 3 comes 30 ms late from its callbacks between two steps."""
    if rank.number == 3:
        stall(rank, 30.0)
    whole_step(job, rank)


def busy_backward(job: Job, rank: Rank, _number: int) -> None:
    """Rank 1 waits busily for 30 ms in a hook of its backward pass, on autograd's thread."""
    load(rank)
    forward(rank)
    if rank.number == 1:
        with rank.autograd():
            stall(rank, 30.0)
    backward(job, rank)
    update(rank, UNIT * 2)


def small_model(job: Job, rank: Rank, _number: int) -> None:
    """Little work and large gradients."""
    whole_step(job, rank, unit=40.0, bucket=10**8)


def recompiles(job: Job, rank: Rank, number: int) -> None:
    """Rank 5 meets a length that it has not compiled, in one step."""
    load(rank)
    if (rank.number, number) == (5, 6):
        stall(rank, 300.0)
    forward(rank)
    backward(job, rank)
    update(rank, UNIT * 2)


def slower(job: Job, rank: Rank, number: int) -> None:
    """Each step's Python work is longer than the last one's, behind a loss that the host reads."""
    stall(rank, 0.5 * (number - 3))
    whole_step(job, rank)
    rank.item()


def documents(job: Job, rank: Rank, number: int) -> None:
    """Each rank pads to the longest of its own sequences, which differ from step to step."""
    whole_step(job, rank, length=random.Random(100 * number + rank.number).uniform(0.3, 2.4))


def read_loss(job: Job, rank: Rank, _number: int) -> None:
    """The host reads the loss in each step, and then prepares the next launches for 12 ms."""
    whole_step(job, rank)
    rank.item()
    stall(rank, 12.0)


def writes_logs(job: Job, rank: Rank, _number: int) -> None:
    """Rank 0 writes summaries for 18 ms in each step."""
    whole_step(job, rank)
    if rank.number == 0:
        rank.item()
        stall(rank, 18.0)


def slow_card(job: Job, rank: Rank, _number: int) -> None:
    """One of eight hosts with a card each is a quarter slower."""
    whole_step(job, rank, unit=UNIT * (1.25 if rank.number == 5 else 1.0))


def accumulates(each: bool) -> Body:
    """Four micro-batches, whose gradients are reduced after each one, or after the last alone."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        for micro in range(4):
            load(rank)
            forward(rank, 4)
            backward(job, rank, 4, bucket=3 * 10**7 if each or micro == 3 else 0)
        update(rank, UNIT * 2)

    return body


def attends(factor: float) -> Body:
    """Attention's backward kernel takes longer after an upgrade."""

    def body(job: Job, rank: Rank, number: int) -> None:
        whole_step(job, rank)
        for _ in range(6):
            rank.kernel(FLASH_BACKWARD, UNIT * 2.0 * factor, op="aten::_flash_attention_backward")

    return body


def shards(*, exposed: bool) -> Body:
    """FSDP whose gathers run beside the layer before, or only when the layer needs them."""

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank)
        for _ in range(6):
            rank.collective(job.world, "_allgather_base", 3 * 10**6, 24 * 10**6, waited=exposed)
            layer(rank, UNIT)
        backward(job, rank, 6, bucket=2 * 10**7)
        update(rank, UNIT * 2)

    return body


def uneven_batches(job: Job, rank: Rank, number: int) -> None:
    """Batches of other lengths on each rank and in each step, and a barrier of hosts behind every step."""
    whole_step(job, rank, length=random.Random(31 * number + 7 * rank.number).uniform(0.5, 1.9))
    rank.item()


def into(body: Body, world: int, **more: object) -> Callable[[Path], None]:
    """Makes the traces of a body in `traces`."""
    return lambda folder: traced(folder / "traces", world, body, **more)  # type: ignore[arg-type]


def two_runs(one: Body, other: Body, world: int) -> Callable[[Path], None]:
    """Makes the traces of two runs, `before` and `after`."""

    def make(folder: Path) -> None:
        for name, body in (("before", one), ("after", other)):
            (folder / name).mkdir(parents=True)
            traced(folder / name / "traces", world, body)

    return make


def stages(folder: Path) -> None:
    """PP 4, DP 2: embedding and head stand beside an even number of layers."""
    shape = Megatron(
        tp=1,
        pp=4,
        micro=8,
        layers=2,
        unit=UNIT,
        activations=4096 * 2048,
        parameters=10**7,
        synchronous=False,
        logit=6.0,
    )
    traced(folder / "traces", 8, shape)


def one_gpu(folder: Path) -> None:
    """A trace of one process that knows nothing of ranks."""
    made = folder / "made"

    def body(job: Job, rank: Rank, _number: int) -> None:
        load(rank, 30_000.0)
        forward(rank)
        backward(job, rank, bucket=0)
        update(rank, UNIT * 2)

    traced(made, 1, body)
    without(made, key="distributedInfo")
    (folder / "traces").mkdir()
    (made / "rank0_trace.json").rename(folder / "traces" / "trace.json")


def host_only(folder: Path) -> None:
    """Traces in which CUPTI was not available: no kernel, no copy."""
    traced(folder / "traces", 4, whole_step_of)
    without(folder / "traces", "kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


def whole_step_of(job: Job, rank: Rank, _number: int) -> None:
    """A healthy step."""
    whole_step(job, rank)


def beside_fragments(folder: Path) -> None:
    """Each rank's trace, beside what a tool cut out of rank 0's and a table that it wrote."""
    traces = folder / "traces"
    traced(traces, 4, slow_one)
    document = json.loads(gzip.decompress((traces / "rank0_trace.json.gz").read_bytes()))
    (traces / "trace_split").mkdir()
    events = document["traceEvents"]
    half = len(events) // 2
    for name, part in (("first", events[:half]), ("second", events[half:])):
        text = json.dumps(document | {"traceEvents": part})
        (traces / "trace_split" / f"rank0_{name}.json.gz").write_bytes(gzip.compress(text.encode()))
    (traces / "trace_split" / "execution_details.json").write_text(
        '{"phases": [{"name": "first", "ms": 12.5}]}'
    )


def slow_one(job: Job, rank: Rank, _number: int) -> None:
    """Rank 2 is slower."""
    whole_step(job, rank, unit=UNIT * (1.3 if rank.number == 2 else 1.0))


def one_path(folder: Path) -> None:
    """All ranks wrote to one path: the text of the second begins where the first had got to."""
    traced(folder / "made", 2, whole_step_of)
    one, other = (gzip.decompress(path.read_bytes()) for path in sorted((folder / "made").iterdir()))
    (folder / "traces").mkdir()
    (folder / "traces" / "trace.json").write_bytes(one[:150_000] + other[90_000:160_000] + one[170_000:])


def no_suspect_but_cause(*causes: str) -> Callable[[Answer], str]:
    """Right where one of the causes is told of all ranks or of none; wrong where some are accused or all is healthy."""

    def judge(answer: Answer) -> str:
        if 0 < len(answer.ranks("suspects")) < 8 or answer.verdict == "healthy":
            return WRONG
        if answer.document.get("cause") in causes:
            return RIGHT
        return OPEN if answer.verdict == "inconclusive" or answer.says(*causes) else MISLEADING

    return judge


def says(*words: str) -> Callable[[Answer], str]:
    """Right where one of the words is said."""
    return lambda answer: RIGHT if answer.says(*words) else MISLEADING


def all_read(rank: int, count: int) -> Callable[[Answer], str]:
    """Right where this rank is named and so many ranks were read."""

    def judge(answer: Answer) -> str:
        ranks = answer.document.get("ranks") or {}
        assert isinstance(ranks, dict)
        if answer.verdict == "refused":
            return MISLEADING
        return RIGHT if answer.ranks("suspects") == (rank,) and ranks.get("read") == count else WRONG

    return judge


def parts_or_remedy(answer: Answer) -> str:
    """Right where the wait for the host is a part; open where it is refused with what to do."""
    if answer.verdict != "refused":
        total = answer.document["total"]
        assert isinstance(total, dict)
        return RIGHT if total["host_ns"] > 0 else MISLEADING
    return OPEN if answer.says("rename") else MISLEADING


def damaged(answer: Answer) -> str:
    """Right where the file is refused as damaged; open where nobody is accused and its damage is told."""
    if answer.ranks("suspects"):
        return WRONG
    told = answer.says("malformed", "no valid json", "damaged")
    return (RIGHT if answer.verdict == "refused" else OPEN) if told else MISLEADING


TRACES = "{}/traces"
SLOWRANK = ("tracekit", "slowrank", TRACES)
BREAKDOWN = ("tracekit", "breakdown", TRACES)
DIFF = ("tracekit", "diff", "{}/before/traces", "{}/after/traces")
TWICE = ((4, 5, 6), (9, 10, 11))


def seen(
    source: str,
    input_: str,
    expected: str,
    make: Callable[[Path], None],
    judge: Callable[[Answer], str],
    command: tuple[str, ...] = SLOWRANK,
    *,
    quick: bool = False,
) -> Report:
    """A report on a slow job."""
    return Report(source, "slow", input_, expected, make, command, judge, quick)


REPORTS = [
    seen(
        "Lightning-AI/pytorch-lightning#1322",
        "DDP on 8 ranks, four loader workers: every fourth batch comes 40 ms late on all ranks",
        "the data loader, on all ranks alike; no rank",
        into(late_batches, 8, steps=12),
        no_suspect_but_cause("dataloader"),
    ),
    seen(
        "pytorch/torchtitan#148",
        "8 ranks; each collects garbage for 25 ms in a step of its own",
        "stalls of the host that move from rank to rank; no single rank",
        into(collects, 8, steps=8),
        no_suspect_but_cause("host_stall"),
    ),
    seen(
        "NVIDIA/cosmos-framework#161",
        "two hosts of 4 ranks, four micro-batches: gradients reduced after the last one, and after each one",
        "slower, by communication of dp, four times the bytes",
        two_runs(accumulates(each=False), accumulates(each=True), 8),
        says("dp"),
        DIFF,
    ),
    seen(
        "ultralytics/ultralytics#8566",
        "DDP on 4 ranks, rank 3 comes 30 ms late out of its callbacks",
        "rank 3, a stall of its host",
        into(callbacks, 4),
        named("suspects", (3,), "host_stall"),
        quick=True,
    ),
    seen(
        "traceopt-ai/traceml#252",
        "DDP on 4 ranks, rank 1 loses 30 ms in a hook of its backward pass",
        "rank 1, not compute of all",
        into(busy_backward, 4),
        named("suspects", (1,)),
    ),
    seen(
        "The-AI-Summer/pytorch-ddp#1",
        "DDP on 4 cards of 4 hosts: little work and large gradients, so that it is slower than one card",
        "no rank; communication of dp is most of the step",
        into(small_model, 4, per_host=1),
        says("dp"),
        BREAKDOWN,
    ),
    seen(
        "pytorch/pytorch#140229",
        "8 ranks, rank 5 recompiles for 300 ms in one of six steps",
        "rank 5, a stall of its host in that step",
        into(recompiles, 8),
        named("suspects", (5,)),
    ),
    seen(
        "NVIDIA-NeMo/Megatron-Bridge#5391",
        "PP 4, DP 2 with an even number of layers; the head makes the last stage longer",
        "stage imbalance, the last stage",
        stages,
        says("stage_imbalance"),
    ),
    seen(
        "facebookresearch/HolisticTraceAnalysis#107",
        "one process, one file without any rank in name or text; batches take 30 ms",
        "the parts of its step, with the wait for the host",
        one_gpu,
        parts_or_remedy,
        BREAKDOWN,
    ),
    seen(
        "Project-MONAI/MONAI#3116",
        "4 ranks, 24 steps; the host's work grows by half a millisecond a step on all ranks",
        "the step grows steadily, by time of the host",
        into(slower, 4, steps=24),
        says("drift", "grow", "slower"),
        ("tracekit", "trend", TRACES),
    ),
    seen(
        "pytorch/pytorch#59433",
        "DDP on 8 ranks, each pads to its own longest sequence in each step",
        "data imbalance that moves from step to step; no rank",
        into(documents, 8, steps=8),
        no_suspect_but_cause("data_imbalance"),
    ),
    seen(
        "foundation-model-stack/fms-fsdp#58",
        "a job of 8 ranks, only rank 0 recorded",
        "open: nothing to compare it with; which ranks to record",
        into(slow_one, 8, recorded=[0]),
        accuses_none("suspects", "record", "one rank", "other ranks"),
    ),
    seen(
        "pytorch/kineto#762",
        "4 ranks with traces without kernels, as without access to CUPTI",
        "says that no device activity was recorded",
        host_only,
        accuses_none("suspects", "no kernel", "device activity", "no device", "no gpu", "cupti"),
    ),
    seen(
        "AMD-AGI/Hyperloom#1189",
        "four traces beside two copies of parts of rank 0's and a table, which a tool left in a folder below",
        "rank 2; the fragments are separated from traces",
        beside_fragments,
        all_read(2, 4),
    ),
    seen(
        "meta-pytorch/torchtune#522",
        "4 ranks; the host reads the loss in each step and then needs 12 ms",
        "no rank; time in which the device waits for the host",
        into(read_loss, 4),
        says("host"),
        BREAKDOWN,
    ),
    seen(
        "NVIDIA/TensorRT-LLM#13536",
        "two ranks wrote their trace to one path at the same time",
        "refused, since the text of the file is damaged in its middle",
        one_path,
        damaged,
    ),
    seen(
        "pytorch/kineto#179",
        "8 ranks, `repeat=2`: two files of each rank with other times, names of the handler",
        "one job of 8 ranks, rank 5",
        into(slow_card, 8, steps=8, cycles=TWICE, habits=replace(HABITS, names="tb"), per_host=1),
        all_read(5, 8),
    ),
    seen(
        "apache/mxnet#15674",
        "4 ranks, rank 0 writes summaries for 18 ms in each step",
        "rank 0, a stall of its host",
        into(writes_logs, 4),
        named("suspects", (0,), "host_stall"),
    ),
    seen(
        "deepspeedai/DeepSpeed#1617",
        "8 hosts with one card each, one card a quarter slower",
        "rank 5, compute",
        into(slow_card, 8, per_host=1),
        named("suspects", (5,), "gpu_compute"),
    ),
    seen(
        "pytorch/pytorch#144729",
        "4 ranks before and after an upgrade; attention's backward kernel is 1.6 times as long",
        "slower, by that kernel",
        two_runs(attends(1.0), attends(1.6), 4),
        says("flash_bwd", "flash_attention_backward"),
        DIFF,
    ),
    seen(
        "pytorch/torchtitan#929",
        "FSDP on 8 ranks before and after a change that lets each layer wait for its own gather",
        "slower, by communication of dp that is exposed",
        two_runs(shards(exposed=False), shards(exposed=True), 8),
        says("waiting", "moving", "dp"),
        DIFF,
    ),
    seen(
        "pytorch/pytorch#102434",
        "FSDP on two hosts of 4 ranks with gathers that take most of the step",
        "no rank; communication of dp is most of the step",
        into(shards(exposed=True), 8, per_host=4),
        says("dp"),
        BREAKDOWN,
    ),
    seen(
        "rwth-i6/returnn#1726",
        "8 ranks with batches of other lengths in each step and a meeting of hosts behind every step",
        "data imbalance that moves from step to step; no rank",
        into(uneven_batches, 8, steps=10),
        no_suspect_but_cause("data_imbalance"),
    ),
]
