"""Evidence taken away from traces as torch writes them, whoever wrote them: the erasures that `reach` counts."""

import json
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

Trace = dict[str, Any]
Traces = dict[str, Trace]
ENDS = ("Src Rank", "Dst Rank")
LISTS = ("Process Group Ranks", "Global rank start", "Global rank stride")
COMMS = (
    "Collective name", "dtype", "In msg nelems", "Out msg nelems", "In msg size", "Out msg size", "In split size",
    "Out split size", "Group size", "Process Group Name", "Process Group Description", *LISTS, "Rank", *ENDS, "Seq",
    "Comms Id",
)  # fmt: skip
TITLES = ("nccl:", "gloo:")
SHARE, CUT_AT, SHIFT_US = 0.1, 0.7, 3_000_000


def keys(*names: str, config: tuple[str, ...] = ()) -> Callable[[Trace, Random], Trace]:
    """Arguments of all events, and fields of the table of groups."""

    def erase(trace: Trace, _: Random) -> Trace:
        for event in trace["traceEvents"]:
            for name in names:
                event.get("args", {}).pop(name, None)
        for group in trace.get("distributedInfo", {}).get("pg_config", []):
            for name in config:
                group.pop(name, None)
        return trace

    return erase


def titles(trace: Trace, _: Random) -> Trace:
    """Titles of communication on host and device, where a record of the call stands beside them."""
    told = any(e.get("name") == "record_param_comms" for e in trace["traceEvents"])
    events = [e for e in trace["traceEvents"] if not (told and str(e.get("name", "")).startswith(TITLES))]
    return trace | {"traceEvents": events}


def marks(trace: Trace, _: Random) -> Trace:
    """ProfilerStep spans."""
    events = [e for e in trace["traceEvents"] if not str(e.get("name", "")).startswith("ProfilerStep")]
    return trace | {"traceEvents": events}


def some_arguments(trace: Trace, random: Random) -> Trace:
    """All that a tenth of the communication says of itself, on host and device alike."""
    for event in trace["traceEvents"]:
        if "Collective name" in event.get("args", {}) and random.random() < SHARE:
            for name in (*COMMS, "External id"):
                event["args"].pop(name, None)
    return trace


def bare_messages(trace: Trace, _: Random) -> Trace:
    """Arguments and External id of the kernels of messages, as of a batch."""
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel" and "SendRecv" in event["name"]:
            for name in (*COMMS, "External id"):
                event["args"].pop(name, None)
    return trace


def peers(trace: Trace, random: Random) -> Trace:
    """All that tells the peer of a message."""
    return titles(keys(*ENDS, "Rank", "Concrete Inputs")(trace, random), random)


def host(trace: Trace, _: Random) -> Trace:
    """Everything of the host but the marks of steps; nothing where the device was not recorded."""
    on_device = any(e.get("cat") == "kernel" for e in trace["traceEvents"])
    gone = {"cpu_op", "cuda_runtime", "cuda_driver"} if on_device else set()
    return trace | {"traceEvents": [e for e in trace["traceEvents"] if e.get("cat") not in gone]}


def records(trace: Trace, _: Random) -> Trace:
    """Records of calls: without them a trace on a CPU is what stock torch leaves of Gloo."""
    events = [e for e in trace["traceEvents"] if e.get("name") != "record_param_comms"]
    return trace | {"traceEvents": events}


def clock(trace: Trace, random: Random) -> Trace:
    """The agreement of clocks: each rank's is shifted."""
    shift = random.randint(-SHIFT_US, SHIFT_US)
    for event in trace["traceEvents"]:
        if "ts" in event:
            event["ts"] += shift
    return trace


def on_all(change: Callable[[Trace, Random], Trace]) -> Callable[[Traces, Random], dict[str, Trace | bytes]]:
    """The erasure on every rank."""
    return lambda traces, random: {name: change(deepcopy(trace), random) for name, trace in traces.items()}


def on_one(change: Callable[[Trace, Random], Trace]) -> Callable[[Traces, Random], dict[str, Trace | bytes]]:
    """The erasure on one rank alone: the others still know what they say of it."""

    def erase(traces: Traces, random: Random) -> dict[str, Trace | bytes]:
        chosen = random.choice(sorted(traces))
        return {n: change(deepcopy(t), random) if n == chosen else t for n, t in traces.items()}

    return erase


def kept(count: Callable[[int], int]) -> Callable[[Traces, Random], dict[str, Trace | bytes]]:
    """All ranks but as many as `count` says of how many there are."""

    def erase(traces: Traces, random: Random) -> dict[str, Trace | bytes]:
        left = sorted(random.sample(sorted(traces), max(2, count(len(traces)))))
        return {name: traces[name] for name in left}

    return erase


def cut(traces: Traces, random: Random) -> dict[str, Trace | bytes]:
    """The tail of one file."""
    chosen = random.choice(sorted(traces))
    data = json.dumps(traces[chosen]).encode()
    return {n: data[: int(CUT_AT * len(data))] if n == chosen else t for n, t in traces.items()}


TAKEN: dict[str, Callable[[Traces, Random], dict[str, Trace | bytes]]] = {
    "`Seq`": on_all(keys("Seq", "Comms Id")),
    "`Src Rank`, `Dst Rank`": on_all(keys(*ENDS)),
    "`Rank`": on_all(keys("Rank")),
    "titles": on_all(titles),
    "all fields that name peers": on_all(peers),
    "all fields that name peers, on one rank": on_one(peers),
    "group names": on_all(keys("Process Group Name", config=("pg_name",))),
    "group descriptions": on_all(keys("Process Group Description", config=("pg_desc",))),
    "member lists": on_all(keys(*LISTS)),
    "member lists and the table of groups": on_all(keys(*LISTS, config=("ranks",))),
    "`ProfilerStep`": on_all(marks),
    "arguments of 10 %": on_all(some_arguments),
    "arguments of messages' kernels (batched)": on_all(bare_messages),
    "records of calls": on_all(records),
    "the host": on_all(host),
    "the host, on one rank": on_one(host),
    "one rank": kept(lambda many: many - 1),
    "40 % of the ranks": kept(lambda many: round(0.6 * many)),
    "the tail of one file": cut,
    "the agreement of clocks": on_all(clock),
}
"""By what is taken away."""
