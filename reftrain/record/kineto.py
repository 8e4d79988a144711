"""Records chosen steps with the profiler and writes one Kineto trace a rank, in the standard form.

The profiler is started after the process groups exist and stopped at a step's end, so that every recorded
step is whole. What `export` changes, and nothing else: the communication spans get the name
`record_param_comms` that tools for NCCL traces look for; the shapes of operators, recorded only
because the arguments of spans come with them, are left out but for products, since FLOPs come from these;
arguments of communication are those of the form asked for, with a title around each message where that form has
titles; so are the spans of marks that compute nothing (`MARKS`: a pause within one would look like computing);
`distributedInfo.pg_config` is written complete; the name of the temporary file goes. In the form `stock`
communication spans go and torch's own `distributedInfo` stays.
On demand, operators called by other operators are left out too: that halves the file and changes no time of computing.
"""

import bisect
import errno
import gzip
import json
import os
import re
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

from reftrain.config.trace_forms import FORMS, NEWEST, TraceForm, title_of
from reftrain.record.groups import pg_config
from reftrain.record.spans import ARGUMENTS, SPAN_NAME

STANDARD_NAME: Final = "record_param_comms"
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # else the profiler writes a line to stderr at start and stop

MARKS: Final = frozenset({"_Mark", "_MarkBackward", "autograd::engine::evaluate_function: _MarkBackward"})
"""Spans of `model.segments`, which only announce where computing begins and ends."""

_SHAPES: Final = (
    "Concrete Inputs",
    "Input type",
    "Input Strides",
    "Input Dims",
    "Ev Idx",
    "Record function id",
)


_PRODUCT: Final = re.compile(r"aten::\w*mm|aten::_scaled_dot_product\w*")
"""Operators that keep the shapes of their inputs, because FLOPs are counted from them."""


class StepProfiler:
    """Profiles the steps between `start` and `stop`; `step` encloses each one with its number."""

    def __init__(self) -> None:
        self._profiler: Any = None

    def start(self) -> None:
        """Begin recording. Process groups made later would be missing in the trace."""
        activities = [torch.profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(torch.profiler.ProfilerActivity.CUDA)
        # shapes, because only then are the arguments of annotated spans written
        self._profiler = torch.profiler.profile(activities=activities, record_shapes=True)
        self._profiler.start()

    def step(self, number: int) -> torch.profiler.record_function:
        """Context of one whole step: the `ProfilerStep#N` annotation that analysers cut traces by."""
        return torch.profiler.record_function(f"ProfilerStep#{number}")

    def stop(self) -> None:
        """End recording."""
        self._profiler.stop()

    def export(self, path: Path, *, nested: bool = True, form: TraceForm = FORMS[NEWEST]) -> None:
        """Write the trace to `path` (.json.gz), under a temporary name first; see `outermost` for `nested`.

        Calls carry the arguments that `form` has.
        """
        handle, raw = tempfile.mkstemp(suffix=".json", dir=path.parent, prefix=".raw-")
        os.close(handle)
        try:
            self._profiler.export_chrome_trace(raw)
            trace = json.loads(Path(raw).read_bytes())
        except ValueError as error:  # the profiler says nothing when it cannot write
            raise OSError(errno.ENOSPC, "the profiler could not write its trace whole", str(path)) from error
        finally:
            Path(raw).unlink()
        trace = standard_form(trace, path.name, form)
        if not nested:
            trace["traceEvents"] = outermost(trace["traceEvents"])
        write_trace(trace, path)


def standard_form(trace: dict[str, Any], name: str, form: TraceForm) -> dict[str, Any]:
    """The profiler's trace in the form that tools for NCCL traces read; `trace` is changed in place."""
    gone = MARKS if form.annotated else MARKS | {SPAN_NAME}
    trace["traceEvents"] = [event for event in trace["traceEvents"] if event.get("name") not in gone]
    titles: list[dict[str, Any]] = []
    for event in trace["traceEvents"]:
        values = event.get("args")
        if event.get("name") == SPAN_NAME:
            event["name"], event["cat"] = STANDARD_NAME, "cpu_op"
            arguments = {k: values[k] for k in ARGUMENTS if k in values}
            event["args"] = {k: v for k, v in values.items() if k == "External id"} | form.shown(arguments)
            titles += _title(event, arguments) if form.titles else []
        elif isinstance(values, dict):
            kept = _PRODUCT.fullmatch(event.get("name", ""))
            for key in _SHAPES:
                if kept is None or key != "Input Dims":
                    values.pop(key, None)
    trace["traceEvents"] += titles
    trace["traceName"] = name
    trace.pop("trace_id", None)
    if not form.annotated:
        return trace
    groups = pg_config()
    info = trace.setdefault("distributedInfo", {})
    info.update(
        rank=dist.get_rank(), world_size=dist.get_world_size(), pg_count=len(groups), pg_config=groups
    )
    return trace


def _title(event: dict[str, Any], arguments: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the title around a message's span, as a list; empty for other calls. `arguments`: all of the call"""
    members = json.loads(arguments["Process Group Ranks"])
    title = title_of(arguments, members.index(dist.get_rank())) if dist.get_rank() in members else None
    if title is None:
        return []
    return [{**event, "cat": "user_annotation", "name": title, "args": {}}]


def outermost(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out operators that run within another operator.

    Operators around a communication span are no bounds (autograd wraps whole backwards): what they hold stays.
    """
    order = sorted(
        (i for i, e in enumerate(events) if e.get("ph") == "X" and e.get("cat") == "cpu_op"),
        key=lambda i: (events[i]["ts"], -events[i]["dur"]),
    )
    calls = [i for i in order if events[i]["name"] == STANDARD_NAME or events[i]["name"].startswith("c10d::")]
    starts = [events[i]["ts"] for i in calls]
    until: dict[int, float] = {}  # thread: end of the operator that bounds
    dropped: set[int] = set()
    for i in order:
        event = events[i]
        end = event["ts"] + event["dur"]
        if event["name"] == STANDARD_NAME:
            continue
        if end <= until.get(event["tid"], 0.0):
            dropped.add(i)
        elif bisect.bisect_left(starts, event["ts"]) == bisect.bisect_right(starts, end):
            until[event["tid"]] = end
    return [e for i, e in enumerate(events) if i not in dropped]


def write_trace(trace: dict[str, Any], path: Path) -> None:
    """Write `trace` compressed; the file appears whole or not at all."""
    body = json.dumps(trace, separators=(",", ":"), ensure_ascii=False).encode()
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as packed:
        packed.write(body)
    temporary.replace(path)
