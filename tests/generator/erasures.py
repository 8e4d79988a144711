"""Takes evidence out of written traces: what some versions, options and exporters of torch do not write.

Every erasure changes the files of a folder in place and nothing of the run that they show.
"""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.generator.program import STREAMS

Event = dict[str, Any]
Events = list[Event]
NAMES = ("Process Group Name", "Process Group Description")
LISTS = ("Process Group Ranks", "Global rank start", "Global rank stride")
COMMS = (
    "Collective name", "dtype", "In msg nelems", "Out msg nelems", "In split size", "Out split size",
    "Group size", *NAMES, *LISTS, "Rank", "Src Rank", "Dst Rank", "Seq",
)  # fmt: skip
LOST = 0.1  # share of kernels whose arguments go missing up to torch 2.12
HOST = ("cpu_op", "cuda_runtime")
WIDE = 2**64 - 1000  # Comms Id is unsigned
COMPUTE = STREAMS["compute"]
ASIDE = (STREAMS["dp"],)
RCCL = "ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)"


def communicates(event: Event) -> bool:
    """Whether an event is a kernel of NCCL."""
    return event.get("cat") == "kernel" and event["name"].startswith("nccl")


def is_message(event: Event) -> bool:
    return "SendRecv" in event["name"]


def without(keys: tuple[str, ...], where: Callable[[Event], bool] = lambda _: True) -> Any:
    """An erasure of arguments from the events that `where` chooses."""

    def erase(events: Events, _rng: np.random.Generator) -> Events:
        for event in events:
            if where(event):
                for key in keys:
                    event.get("args", {}).pop(key, None)
        return events

    return erase


def lose_arguments(events: Events, rng: np.random.Generator) -> Events:
    """A random share of kernels says nothing of what it carries out; collectives only, with their host's records."""
    for event in events:
        if communicates(event) and not is_message(event) and rng.random() < LOST:
            for key in (*COMMS, "External id"):
                event["args"].pop(key, None)
    return events


def lose_arguments_and_host(events: Events, rng: np.random.Generator) -> Events:
    """The same in a recording of the device alone; only the marks of steps are left of the host."""
    return [e for e in lose_arguments(events, rng) if e.get("cat") not in HOST]


def lose_arguments_and_kinds(events: Events, rng: np.random.Generator) -> Events:
    """The same with the kernels of RCCL, whose names tell no kind."""
    for event in lose_arguments_and_host(events, rng):
        if communicates(event) and not is_message(event):
            event["name"] = RCCL
    return [e for e in events if e.get("cat") not in HOST]


def lose_marks(events: Events, _rng: np.random.Generator) -> Events:
    """No ProfilerStep: the program called no `step()`."""
    return [e for e in events if not e.get("name", "").startswith("ProfilerStep")]


def replay_graphs(events: Events, _rng: np.random.Generator) -> Events:
    """Every step is one CUDA graph: its kernels share the correlation of one launch and carry no arguments."""
    marks = [
        e for e in events if e.get("name", "").startswith("ProfilerStep") and e["cat"] == "user_annotation"
    ]
    marks.sort(key=lambda e: e["ts"])
    begins = [m["ts"] for m in marks]
    launched = {e["args"]["correlation"]: e["ts"] for e in events if e.get("cat") == "cuda_runtime"}
    kept = []
    for event in events:
        if event.get("cat") == "kernel":
            moment = launched.get(event["args"].get("correlation"), event["ts"])
            step = int(np.searchsorted(begins, moment, side="right")) - 1
            graph = max(step, 0)
            event["args"] = {k: event["args"][k] for k in ("device", "stream")} | {
                "correlation": 7_000_000 + graph
            }
            event["args"] |= {"graph id": 1}
            kept.append(event)
        elif event.get("cat") not in HOST:
            kept.append(event)
    for number, mark in enumerate(marks):
        ids = {k: mark[k] for k in ("pid", "tid")}
        launch = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaGraphLaunch",
            "ts": mark["ts"] + 5,
            "dur": 20.0,
        }
        kept.append(launch | ids | {"args": {"correlation": 7_000_000 + number}})
    return kept


def widen_ids(events: Events, _rng: np.random.Generator) -> Events:
    """Comms Id (2.13), an unsigned number of 64 bits."""
    for event in events:
        if "Collective name" in event.get("args", {}):
            event["args"]["Comms Id"] = WIDE
    return events


def show_lanes(events: Events, _rng: np.random.Generator) -> Events:
    """The Python exporter's display lanes: kernels that overlap others of their stream are moved to another one."""
    for number, event in enumerate(events):
        if event.get("cat") == "kernel":
            event["args"]["original_stream"] = event["args"]["stream"]
            event["args"]["stream"] = 100 + number % 3
    return events


def on_callers_stream(events: Events, _rng: np.random.Generator) -> Events:
    """Collectives that the program waits for at once run on the stream of its compute: from torch 2.8."""
    for event in events:
        if communicates(event) and not is_message(event) and event["args"]["stream"] not in ASIDE:
            event["args"]["stream"] = event["tid"] = COMPUTE
    return events


def lose_arguments_on_callers_stream(events: Events, rng: np.random.Generator) -> Events:
    """The same with the arguments of some lost, and nothing of the host."""
    return lose_arguments_and_host(on_callers_stream(events, rng), rng)


def coalesce(events: Events, _rng: np.random.Generator) -> Events:
    """Names of coalesced collectives, as Megatron's gradient buffers call them."""
    names = {
        "_allgather_base": "allgather_into_tensor_coalesced",
        "_reduce_scatter_base": "reduce_scatter_tensor_coalesced",
        "allreduce": "allreduce_coalesced",
    }
    for event in events:
        name = event.get("args", {}).get("Collective name")
        if name in names:
            event["args"]["Collective name"] = names[name]
    return events


ERASURES: dict[str, Any] = {
    "seq": without(("Seq",)),
    "descriptions": without(NAMES[1:]),
    "names": without(NAMES),
    "lists": without(LISTS),
    "lists and config": without(LISTS),
    "arguments of some": lose_arguments,
    "arguments of some, no host": lose_arguments_and_host,
    "arguments of some, rccl": lose_arguments_and_kinds,
    "caller's stream": on_callers_stream,
    "caller's stream, arguments of some, no host": lose_arguments_on_callers_stream,
    "step marks": lose_marks,
    "graphs": replay_graphs,
    "wide ids": widen_ids,
    "display lanes": show_lanes,
    "coalesced": coalesce,
}
"""By what is taken out or written otherwise."""


def two_captures(folder: Path, steps: int = 3) -> None:
    """Two files for each rank, with the first and with the last `steps` marked steps; what lies between is lost."""
    for path in sorted(folder.rglob("*.json*")):
        packed = path.suffix == ".gz"
        document = json.loads(gzip.decompress(path.read_bytes()) if packed else path.read_bytes())
        events = document["traceEvents"]
        marks = [e for e in events if e["name"].startswith("ProfilerStep") and e["cat"] == "user_annotation"]
        marks.sort(key=lambda e: e["ts"])
        until, since = marks[steps - 1]["ts"] + marks[steps - 1]["dur"], marks[-steps]["ts"]
        parts = [e for e in events if e["ts"] <= until], [e for e in events if e["ts"] >= since]
        for number, part in enumerate(parts):
            data = json.dumps(document | {"traceEvents": part}).encode()
            name = path.with_name(f"capture{number}-{path.name}")
            name.write_bytes(gzip.compress(data, 1, mtime=0) if packed else data)
        path.unlink()


def erase(folder: Path, what: str, seed: int = 0) -> None:
    """Rewrite every trace in `folder` without what the erasure takes out; whole files only."""
    for path in sorted(folder.rglob("*.json*")):
        packed = path.suffix == ".gz"
        document = json.loads(gzip.decompress(path.read_bytes()) if packed else path.read_bytes())
        rank = document["distributedInfo"]["rank"]
        rng = np.random.default_rng([seed, rank])
        document["traceEvents"] = ERASURES[what](document["traceEvents"], rng)
        if what.endswith("config"):
            document["distributedInfo"].pop("pg_config", None)
        if what == "descriptions":
            for group in document["distributedInfo"].get("pg_config", []):
                group["pg_desc"] = ""
        data = json.dumps(document).encode()
        path.write_bytes(gzip.compress(data, 1, mtime=0) if packed else data)
