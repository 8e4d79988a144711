"""Slow jobs whose authors have other files than a trace of each rank: one step, merged, renamed, beside others."""

import gzip
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.reports.jobs import HABITS, UNIT, backward, forward, stall, traced, whole_step
from tests.reports.places import one_slow
from tests.reports.report import MISLEADING, RIGHT, WRONG, Answer, Report, named
from tests.reports.slow import BREAKDOWN, all_read, into, says, seen
from tests.reports.uneven import Grouped
from tests.shapes.calls import Group
from tests.shapes.job import Job
from tests.shapes.layers import layer, load, update
from tests.shapes.rank import Rank

Document = dict[str, Any]


def each(folder: Path) -> Iterator[tuple[Path, Document]]:
    """The traces of a folder, in order of their names."""
    for path in sorted(folder.glob("*.json.gz")):
        yield path, json.loads(gzip.decompress(path.read_bytes()))


def write(path: Path, document: object) -> None:
    """Write a document, packed where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(document).encode()
    path.write_bytes(gzip.compress(text, compresslevel=1) if path.suffix == ".gz" else text)


def rewritten(change: Callable[[int, Document], None], **more: Any) -> Callable[[Path], None]:
    """Makes the traces of four ranks and changes each in place; rank 2 is slow."""

    def make(folder: Path) -> None:
        traced(folder / "traces", 4, one_slow, **more)
        for number, (path, document) in enumerate(each(folder / "traces")):
            change(number, document)
            write(path, document)

    return make


def marks(document: Document) -> list[Document]:
    """The events of steps, on the host and on the device."""
    return [event for event in document["traceEvents"] if str(event.get("name")).startswith("ProfilerStep")]


def one_long_step(_rank: int, document: Document) -> None:
    """The loop never calls `prof.step()`: all iterations lie in one step."""
    events = document["traceEvents"]
    for cat in ("user_annotation", "gpu_user_annotation"):
        own = [event for event in marks(document) if event["cat"] == cat]
        if own:
            first, end = own[0], max(float(event["ts"]) + float(event["dur"]) for event in own)
            first |= {"name": "ProfilerStep#0", "dur": round(end - float(first["ts"]), 3)}
            for event in own[1:]:
                events.remove(event)


def named_by_lightning(_rank: int, document: Document) -> None:
    """Lightning's profiler names its own spans, and numbers none."""
    for event in marks(document):
        event["name"] = "[pl][profile]run_training_batch"


def without_marks(_rank: int, document: Document) -> None:
    """The profiler had no schedule: no step is marked."""
    gone = {id(event) for event in marks(document)}
    document["traceEvents"] = [event for event in document["traceEvents"] if id(event) not in gone]


def with_counters(folder: Path) -> None:
    """HTA left a copy of each trace with counters beside it."""
    traced(folder / "traces", 4, one_slow)
    for path, document in list(each(folder / "traces")):
        begin = float(document["traceEvents"][0]["ts"])
        counters = [
            {"ph": "C", "name": "Queue Length", "pid": 0, "ts": begin + 10 * at, "args": {"7": at % 9}}
            for at in range(50)
        ]
        document["traceEvents"] += counters
        write(path.with_name(path.name.replace(".json.gz", "_with_counters.json.gz")), document)


def relabelled(rank: int, document: Document) -> list[Document]:
    """The events of a rank as a merger of traces writes them: each process has the rank in its name."""
    label = f"[TP{rank:02}-DP00-PP00-EP00]"
    return [event | {"pid": f"{label} {event.get('pid')}"} for event in document["traceEvents"]]


def merged_of(folder: Path) -> Document:
    """All ranks' events in one document."""
    whole: Document = {"schemaVersion": 1, "deviceProperties": [], "traceEvents": []}
    for rank, (_, document) in enumerate(each(folder)):
        whole["traceEvents"] += relabelled(rank, document)
        whole["baseTimeNanoseconds"] = document.get("baseTimeNanoseconds", 0)
    return whole


def merged_beside(folder: Path) -> None:
    """A merger of traces left the merged one beside those of the ranks."""
    traced(folder / "traces", 4, one_slow)
    write(folder / "traces" / "merged-1712000000.trace.json.gz", merged_of(folder / "traces"))


def merged_alone(folder: Path) -> None:
    """Only the merged trace was kept."""
    traced(folder / "made", 4, one_slow)
    write(folder / "traces" / "merged_trace.json", merged_of(folder / "made"))


def steps_apart(folder: Path) -> None:
    """One step is recorded in each fourth one, into a folder of its own."""
    cycles = ((6,), (10,), (14,))
    traced(folder / "made", 4, one_slow, steps=12, cycles=cycles, habits=replace(HABITS, names="tb"))
    found: dict[int, list[Document]] = {}
    for _, document in each(folder / "made"):
        found.setdefault(document["distributedInfo"]["rank"], []).append(document)
    for rank, documents in found.items():
        for (step,), document in zip(cycles, documents, strict=True):
            write(folder / "traces" / f"iteration_{step}" / f"rank{rank}_trace.json", document)


def skewed(job: Job, rank: Rank, _number: int) -> None:
    """The profiler of each rank starts at its own moment, so that the first gather waits for the last of them."""
    stall(rank, random.Random(rank.number).uniform(0.0, 10.0))
    rank.collective(job.world, "_allgather_base", 10**6, 8 * 10**6)
    load(rank)
    forward(rank)
    backward(job, rank)
    update(rank, UNIT * 2)


def beside_memory(folder: Path) -> None:
    """Memory timelines, a snapshot and a table lie beside the traces, as a profiler of a framework leaves them."""
    traces = folder / "traces"
    traced(traces, 4, one_slow)
    for rank in range(4):
        times = [1000 * at for at in range(40)]
        write(
            traces / f"rank{rank}.memory_timeline.json", [times, [[0, 10**6 * at, 4096] for at in range(40)]]
        )
        raw = [[1712000000000000 + at, at % 3, 4096 * at, at % 8] for at in range(200)]
        write(traces / f"rank{rank}.memory_timeline.raw.json.gz", raw)
        (traces / f"rank{rank}.memory_timeline.html").write_text("<html><body>memory</body></html>")
        (traces / f"rank{rank}_memory_snapshot.pickle").write_bytes(b"\x80\x04]\x94.")
        (traces / f"rank{rank}_key_averages.txt").write_text("Name   Self CUDA\naten::mm   12 ms\n")


def with_execution_traces(folder: Path) -> None:
    """Traces whose rank is a number before the suffix, beside execution traces of the same ranks."""
    traced(folder / "made", 4, one_slow)
    for rank, (_, document) in enumerate(each(folder / "made")):
        del document["distributedInfo"]
        write(folder / "traces" / f"trace_kineto.{rank}.json", document)
        nodes = [
            {"id": at, "name": "aten::mm", "ctrl_deps": 1, "inputs": {}, "outputs": {}} for at in range(1, 9)
        ]
        write(
            folder / "traces" / f"trace_pytorch.{rank}.json", {"schema": "1.1.0-chakra.0.0.4", "nodes": nodes}
        )


def of_npus(folder: Path) -> None:
    """What torch_npu writes for each rank: a list of events with times as texts, in folders of its own."""
    for rank in range(4):
        at = folder / "traces" / f"node0_{4000 + rank}_2026010312000{rank}_ascend_pt"
        events: list[Document] = [
            {"name": "process_name", "ph": "M", "pid": 10 + n, "tid": 0, "args": {"name": name}}
            for n, name in enumerate(("Python", "AscendCL", "Ascend Hardware", "Communication"))
        ]
        for step in range(4, 10):
            begin = 1712000000000000.123 + 20000 * step
            span = {"ph": "X", "pid": 10, "tid": 77, "cat": "user_annotation", "dur": 19000.5, "args": {}}
            events.append(span | {"name": f"ProfilerStep#{step}", "ts": f"{begin:.3f}"})
            for call in range(20):
                task = {"Task Type": "AI_CORE", "Physic Stream Id": 2, "Task Id": call, "connection_id": call}
                kernel = {"name": "MatMulV3", "ph": "X", "pid": 12, "tid": 2, "dur": 400.1, "args": task}
                events.append(kernel | {"ts": f"{begin + 500 * call:.3f}"})
            reduce = {
                "name": "hcom_allReduce__123_0_1",
                "ph": "X",
                "pid": 13,
                "tid": 3,
                "dur": 900.2,
                "args": {},
            }
            events.append(reduce | {"ts": f"{begin + 12000:.3f}"})
        write(at / "ASCEND_PROFILER_OUTPUT" / "trace_view.json", events)
        write(at / f"profiler_info_{rank}.json", {"rank_id": rank})
        (at / "ASCEND_PROFILER_OUTPUT" / "kernel_details.csv").write_text(
            "Name,Duration(us)\nMatMulV3,400.1\n"
        )


def products(groups: dict[str, Group], rank: Rank) -> None:
    """A product cut over four cards; that of rank 3 lags behind, and the profiler has no schedule."""
    for _ in range(8):
        layer(rank, UNIT * (1.25 if rank.number == 3 else 1.0))
        rank.collective(groups["world"], "allreduce", 10**7, 10**7)


def lag(folder: Path) -> None:
    """The traces of a cut product without marks of steps."""
    traced(folder / "traces", 4, Grouped({}, products))
    for path, document in each(folder / "traces"):
        without_marks(0, document)
        write(path, document)


def one_process(folder: Path) -> None:
    """One process drives four devices, and torch records no call of its own behind NCCL's kernels."""
    traced(folder / "made", 4, one_slow)
    documents = [document for _, document in each(folder / "made")]
    whole = documents[0]
    del whole["distributedInfo"]
    work = {"kernel", "gpu_memcpy", "gpu_memset"}
    for document in documents[1:]:
        whole["traceEvents"] += [event for event in document["traceEvents"] if event.get("cat") in work]
    for event in list(whole["traceEvents"]):
        if str(event.get("name")).startswith(("record_param_comms", "c10d::", "nccl:")):
            whole["traceEvents"].remove(event)
        elif event.get("cat") == "kernel" and "nccl" in event["name"]:
            event["args"] = {key: event["args"][key] for key in ("device", "stream", "correlation")}
    write(folder / "traces" / "trace.json", whole)


def of_jax(folder: Path) -> None:
    """What JAX's profiler leaves for TensorBoard."""
    at = folder / "traces" / "plugins" / "profile" / "2026_01_03_12_00_00"
    events: list[Document] = [
        {"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/device:GPU:0"}}
    ]
    fusion = {
        "ph": "X",
        "pid": 1,
        "tid": 14,
        "dur": 400.0,
        "name": "loop_fusion",
        "args": {"hlo_module": "jit_step"},
    }
    events += [fusion | {"ts": 1000.0 * place} for place in range(100)]
    document = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}, "traceEvents": events}
    write(at / "node0.trace.json.gz", document)
    (at / "node0.xplane.pb").write_bytes(b"\n\x10/device:GPU:0\x12")


def faulty_unseen(job: Job, rank: Rank, _number: int) -> None:
    """Card 13 of 32 is slow; the first rank of each host alone is recorded."""
    whole_step(job, rank, unit=UNIT * (1.3 if rank.number == 13 else 1.0))


def innocent(*words: str) -> Callable[[Answer], str]:
    """Wrong where a rank is named or all is healthy; right where the words are said."""

    def judge(answer: Answer) -> str:
        if answer.ranks("suspects") or answer.verdict == "healthy":
            return WRONG
        return RIGHT if answer.says(*words) else MISLEADING

    return judge


def read_or_refused(ranks: tuple[int, ...], *words: str) -> Callable[[Answer], str]:
    """Right where exactly these ranks are named, or the input is refused in these words."""

    def judge(answer: Answer) -> str:
        if answer.verdict == "refused":
            return RIGHT if answer.says(*words) else MISLEADING
        return RIGHT if answer.ranks("suspects") == ranks else WRONG

    return judge


FIRST_OF_HOSTS = [0, 8, 16, 24]

REPORTS: list[Report] = [
    seen(
        "pytorch/kineto#774",
        "4 ranks; the loop never calls `prof.step()`, so that all iterations lie in one step",
        "rank 2, or open with it",
        rewritten(one_long_step),
        named("suspects", (2,), "gpu_compute"),
        quick=True,
    ),
    seen(
        "Lightning-AI/pytorch-lightning#5560",
        "4 ranks; steps are spans of Lightning's profiler without numbers",
        "rank 2, compute",
        rewritten(named_by_lightning),
        named("suspects", (2,), "gpu_compute"),
    ),
    seen(
        "pytorch/torchtitan#2418",
        "4 ranks; one step in each fourth one is recorded, each into a folder of its own",
        "rank 2, or open with it",
        steps_apart,
        named("suspects", (2,), "gpu_compute"),
    ),
    seen(
        "meta-pytorch/attention-gym#487",
        "8 ranks, one step; profilers start up to 10 ms apart, so that the first gather waits",
        "no rank; the wait belongs to the profilers",
        into(skewed, 8, steps=1),
        lambda answer: WRONG if answer.ranks("suspects") or answer.ranks("candidates") else RIGHT,
    ),
    seen(
        "NVIDIA/nccl#893",
        "TP 4 without marks of steps; rank 3 lags behind in each product",
        "rank 3, compute",
        lag,
        named("suspects", (3,), "gpu_compute"),
    ),
    seen(
        "sgl-project/sglang#11413",
        "4 traces and the one that a merger made of them, in one folder",
        "rank 2 of 4; the merged trace is no fifth rank",
        merged_beside,
        all_read(2, 4),
    ),
    seen(
        "AMD-AGI/TraceLens#577",
        "one merged trace of 4 ranks",
        "read, or refused as merged with the request for the ranks' own traces",
        merged_alone,
        read_or_refused((2,), "it was merged"),
    ),
    seen(
        "facebookresearch/HolisticTraceAnalysis#210",
        "4 traces, and copies of them with counters that HTA left beside",
        "rank 2 of 4",
        with_counters,
        all_read(2, 4),
    ),
    seen(
        "pytorch/pytorch#141432",
        "4 traces beside memory timelines as JSON and HTML, snapshots and tables",
        "rank 2 of 4; the rest is left alone",
        beside_memory,
        all_read(2, 4),
    ),
    seen(
        "mlcommons/chakra#167",
        "`trace_kineto.0.json` and on beside execution traces, without any rank in them",
        "rank 2, or refused with how to name the files",
        with_execution_traces,
        read_or_refused((2,), "rename"),
    ),
    seen(
        "Ascend/pytorch#133",
        "4 folders of torch_npu, each with a list of events that hold times as texts",
        "refused, as traces of NPUs that are not read",
        of_npus,
        read_or_refused((), "trace of torch_npu"),
    ),
    seen(
        "pytorch/pytorch#3917",
        "one trace of `nn.DataParallel`: one process with four devices",
        "says that the process drives several devices",
        one_process,
        says("several_devices"),
        BREAKDOWN,
    ),
    seen(
        "openxla/xprof#578",
        "the folder that JAX's profiler writes for TensorBoard",
        "refused, as of another program",
        of_jax,
        read_or_refused((), "of another program"),
    ),
    seen(
        "mlfoundations/open_clip#136",
        "32 ranks on four hosts, the first of each host recorded; the card of rank 13 is slow",
        "open: an unrecorded rank; which ranks to record",
        into(faulty_unseen, 32, recorded=FIRST_OF_HOSTS),
        innocent("record"),
    ),
]
