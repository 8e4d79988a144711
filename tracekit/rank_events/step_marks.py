"""The profiler's step marks: which step each operation belongs to.

An operation belongs to the step in which the host launched it, so that steps stay separate on a device that runs
behind its host.
"""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tracekit.rank_events.coded_words import Column
from tracekit.rank_events.event_columns import DEVICE_CALLS, filled, ints, latest, matches
from tracekit.thresholds.ingest import MAX_STEP
from tracekit.thresholds.tables import LATE_LAUNCH_NS, MOST_BEHIND_MARKS
from tracekit.units import I32, I64

NO_STEP: Final = -1
"""Step of an operation outside every marked step."""

_STEP = re.compile(r"^ProfilerStep#(\d{1,10})$")


def step_number(name: str | None) -> int | None:
    """Return the number of the step that an event of that name marks; None where it marks none."""
    return int(m.group(1)) if name and (m := _STEP.match(name)) else None


def step_spans(events: pa.Table, cat: Column, start: I64, end: I64) -> dict[int, tuple[int, int]]:
    """Return the host time (begin, end) of each marked step, ns, by number; `cat`, `start` and `end` are per event."""
    number = matches(events, "name", step_number)
    spans: dict[int, tuple[int, int]] = {}
    for row in np.flatnonzero(filled(events, "name", step_number) & (cat != "gpu_user_annotation")):
        step = int(number[row])
        if step < MAX_STEP:
            old = spans.get(step, (int(start[row]), int(end[row])))
            spans[step] = min(old[0], int(start[row])), max(old[1], int(end[row]))
    return dict(sorted(spans.items()))


def run_ahead(steps: dict[int, tuple[int, int]], cat: Column, rows: I64, start: I64) -> bool:
    """Whether the host had ended all `steps` before most of the operations `rows` began, and no launch shows theirs.

    Such marks show when the host was in a step, not when the device was. `cat` and `start` (ns) are per event.
    """
    if not steps or not len(rows) or cat.among(DEVICE_CALLS).any():
        return False
    last = max(end for _, end in steps.values())
    return float((start[rows] > last).mean()) > MOST_BEHIND_MARKS


def label(times: I64, steps: dict[int, tuple[int, int]]) -> I32:
    """Return the step of each time (ns); NO_STEP before the first and after the last.

    Time between two steps belongs to the earlier one, but to no step if steps between them were not recorded.
    """
    if not steps:
        return np.full(len(times), NO_STEP, np.int32)
    numbers = sorted(steps, key=lambda s: steps[s][0])
    index = np.searchsorted([steps[s][0] for s in numbers], times, side="right") - 1
    upto = np.array([steps[n][1] for n in numbers])
    followed = np.flatnonzero(np.diff(numbers) == 1)
    upto[followed] = np.iinfo(np.int64).max
    inside = (index >= 0) & (times <= upto[np.maximum(index, 0)])
    return np.where(inside, np.asarray(numbers)[np.maximum(index, 0)], NO_STEP).astype(np.int32)


def launch_rows(events: pa.Table, cat: Column, rows: I64, begins: Sequence[int] = ()) -> I64:
    """For each kernel of `rows` the event row of its launch on the host; -1 if the trace does not show it.

    Among several launches with the kernel's correlation, as windows of two processes have, it is the last one before
    it. A launch in another window, or long after the kernel, belongs to another kernel. `begins` of windows are
    sorted, ns.
    """
    correlation, start = ints(events, "correlation", -1), ints(events, "ts", 0)
    hosts = np.flatnonzero(cat.among(DEVICE_CALLS) & (correlation >= 0))
    found = latest(correlation[hosts], start[hosts], correlation[rows], start[rows])
    launch = np.where(found >= 0, np.append(hosts, -1)[found], -1)
    window = np.searchsorted(np.array(begins[1:], np.int64), start, side="right")
    own = (start[launch] <= start[rows] + LATE_LAUNCH_NS) & (window[launch] == window[rows])
    return np.where((launch >= 0) & own, launch, -1)


def step_work(
    steps: dict[int, tuple[int, int]], issued: I64, end: I64, begins: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Return when the work of each marked step begins and ends, ns, by number; `steps` are their host spans.

    `issued` and `end` are of each activity of the device, `begins` of the windows. The work begins with the step, but
    not before the device has done what was launched ahead of the window. It ends when the device has done what was
    launched until the step ends, and the host has reached that end.
    """
    if not steps:
        return {}
    order = np.argsort(issued, kind="stable")
    latest_end = np.maximum.accumulate(np.append(0, end[order]))
    spans = np.array(list(steps.values()), np.int64)
    window = np.array(begins)[np.maximum(np.searchsorted(begins, spans[:, 0], side="right") - 1, 0)]
    asked = np.stack([window, spans[:, 1]], axis=1)
    done = latest_end[np.searchsorted(issued[order], asked)]
    return {n: (int(a), int(b)) for n, (a, b) in zip(steps, np.maximum(done, spans), strict=True)}


def captures(steps: dict[int, tuple[int, int]], start: I64, windows: Sequence[int] = ()) -> list[int]:
    """Return the begin of each window on the host, ns: the first event, and each step after a gap in step numbers.

    `steps` are the host spans of marked steps by number, `start` is per event. Without marks the begins are those of
    the files, `windows`.
    """
    first = int(start.min()) if len(start) else 0
    others = [steps[n][0] for n in sorted(steps) if n - 1 not in steps and n > min(steps)]
    return [first, *(others if steps else sorted(w for w in windows if w > first))]


def issue_times(launch: I64, stream: I64, begin: I64, start: I64, windows: Sequence[int]) -> I64:
    """Return when the host issued each operation, ns: its launch, where known, else its begin.

    Where the host runs ahead, the device still runs kernels that were launched before a window began. A stream runs in
    order of launch, so a kernel without a launch ahead of the first one launched in the window is one of them: it
    counts as issued just before the window, and so belongs to no marked step. launch: event rows, −1 where
    unknown; stream, begin: per operation, in order of begin; start: per event; windows: from `captures`.
    """
    known = launch >= 0
    issued = np.where(known, start[launch], begin)
    order = np.argsort(stream, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(stream[order])) + 1):
        for window in windows:
            inside = np.flatnonzero(known[mine] & (issued[mine] >= window))
            ahead = mine[: int(inside[0])] if len(inside) else mine[:0]
            early = ahead[~known[ahead] & (begin[ahead] >= window)]
            issued[early] = window - len(early) + np.arange(len(early))
    return np.asarray(issued, np.int64)
