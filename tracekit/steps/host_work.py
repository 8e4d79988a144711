"""When a host works, and when it stops for its device or for another host."""

import re
from typing import Final

import numpy as np
import pyarrow as pa

from tracekit.arrays import numbered_rows
from tracekit.intervals import Intervals, subtract, union
from tracekit.rank_events.compute import COMM_KERNEL, DEVICE_WORK
from tracekit.rank_events.event_columns import DEVICE_CALLS, categories, ints, truth
from tracekit.rank_events.step_marks import launch_rows
from tracekit.rank_events.stream_waits import HOST_WAIT
from tracekit.thresholds.slowrank import HOST_SILENT_NS, LAUNCHED_NS, OPERATOR_NS, QUEUE_ROOM
from tracekit.units import I64, Mask

HOST_COLUMNS: Final = ["ts", "dur", "cat", "name", "correlation", "pid", "tid"]
"""The columns of events that show what a host does."""

LAUNCH: Final = re.compile(r"^(cuda|hip|cu)\w*Launch", re.IGNORECASE)
"""Calls that launch kernels."""

LOADER: Final = re.compile(r"dataloader|data_load|next_batch|get_batch", re.IGNORECASE)
"""Spans in which a host waits for its next batch."""

_WAITS = re.compile(rf"{HOST_WAIT.pattern}|Query")
"""Calls in which a host may wait until its device, or another host, has done something."""

FOR_OTHERS: Final = re.compile(r"^(gloo|mpi|ucc)\b|barrier", re.IGNORECASE)
"""Operators in which a host may wait until another host comes."""

_TALKS = re.compile(r"^(record_param_comms$|c10d::|nccl:)")
"""Operators in which a host may wait until there is room for its data."""


def host_work(events: pa.Table) -> tuple[Intervals, I64]:
    """Return (intervals in which a host works, sorted times at which it launches kernels); ns. Takes `HOST_COLUMNS`.

    A host works in operators, in short calls and in loading data, and between these unless nothing is recorded for
    long: there it may wait for another host. In waiting calls, and in calls that a full queue makes long, it waits for
    its device, as it does behind communication that it reads (`_read_behind`). It may do so in long operators as well,
    and between calls if no operator was recorded (`_likely_work`).
    """
    start = ints(events, "ts", 0)
    lasts = ints(events, "dur", 0)
    cat, end = categories(events), start + lasts
    call = cat.among(DEVICE_CALLS)
    launches = call & truth(events, "name", LAUNCH)
    mine = _of_launching_threads(events, launches)
    waits = call & (truth(events, "name", _WAITS) | ((lasts > LAUNCHED_NS) & ~_with_room(events, launches)))
    called = mine & (cat == "cpu_op")
    operator = called & ~truth(events, "name", FOR_OTHERS)
    unsure = operator & ((lasts > OPERATOR_NS) | (truth(events, "name", _TALKS) & (lasts > HOST_SILENT_NS)))
    loads = cat.among(["user_annotation", "python_function"]) & truth(events, "name", LOADER)
    busy = (mine & ((call & ~waits) | loads)) | (operator & ~unsure)
    seen = busy | (mine & waits)
    spans = union(start[seen], end[seen])
    brief = spans[0][1:] - spans[1][:-1] <= HOST_SILENT_NS
    linked = union(
        np.concatenate([start[busy], spans[1][:-1][brief]]), np.concatenate([end[busy], spans[0][1:][brief]])
    )
    between = union(start[unsure], end[unsure]) if called.any() else (linked[1][:-1], linked[0][1:])
    read = _read_behind(events, mine & (call | called))
    stands = union(np.append(start[waits], read[0]), np.append(end[waits], read[1]))
    likely = _likely_work(events, subtract(subtract(between, linked), stands))
    working = subtract(linked, stands)
    every = (np.concatenate(sides) for sides in zip(working, likely, strict=True))
    return union(*every), np.sort(start[launches])


def _read_behind(events: pa.Table, recorded: Mask) -> Intervals:
    """Return when a host stands behind communication that it launched, as nothing is `recorded` until that ends; ns.

    It reads there what a kernel writes into its memory, as DeepEP's dispatch reads how many tokens it got.
    """
    start, cat = ints(events, "ts", 0), categories(events)
    end = start + ints(events, "dur", 0)
    rows = np.flatnonzero((cat == "kernel") & truth(events, "name", COMM_KERNEL))
    launch = launch_rows(events, cat, rows)
    since, until = end[launch[launch >= 0]], end[rows[launch >= 0]]
    moments = np.sort(np.concatenate([start[recorded], end[recorded]]))
    following = np.append(moments, np.iinfo(np.int64).max)[np.searchsorted(moments, since, "right")]
    read = (until - since > HOST_SILENT_NS) & (following > until - LAUNCHED_NS)
    return union(since[read], np.minimum(until, following)[read])


def silences(events: pa.Table) -> tuple[Intervals, I64, int]:
    """Return (when a host records nothing for long, kernels in its device's queue then, the most at any launch); ns.

    A call in which it waited for its device would be recorded, but where the queue is full, or a kernel is read.
    """
    cat, start = categories(events), ints(events, "ts", 0)
    launches = cat.among(DEVICE_CALLS) & truth(events, "name", LAUNCH)
    mine = _of_launching_threads(events, launches) & (cat.among(DEVICE_CALLS) | (cat == "cpu_op"))
    read = _read_behind(events, mine)
    ends = start[mine] + ints(events, "dur", 0)[mine]
    begins, ends = union(np.append(start[mine], read[0]), np.append(ends, read[1]))
    long = begins[1:] - ends[:-1] > HOST_SILENT_NS
    silent = ends[:-1][long], begins[1:][long]
    most = _queued(events, np.sort(start[launches])).max(initial=0)
    return silent, _queued(events, silent[0]), int(most)


def _likely_work(events: pa.Table, gaps: Intervals) -> Intervals:
    """Return the part of `gaps` in which a host likely works although it may wait for its device; ns.

    All of those with room in the device's queue, and of any other as much as the median of these.
    """
    begins, ends = gaps
    roomy = _queued(events, begins) < QUEUE_ROOM
    usual = int(np.median((ends - begins)[roomy])) if roomy.any() else 0
    return begins, np.where(roomy, ends, np.minimum(ends, begins + usual))


def _of_launching_threads(events: pa.Table, launches: Mask) -> Mask:
    """Return whether each event is of a thread that `launches` kernels; others, such as pinning threads, are beside."""
    number = numbered_rows(ints(events, "pid", -1), ints(events, "tid", -1))[1]
    return np.asarray(np.isin(number, np.unique(number[launches])), bool)


def _with_room(events: pa.Table, launches: Mask) -> Mask:
    """Return whether each event is one of `launches` with so few kernels queued that the queue cannot be full."""
    known = np.flatnonzero(launches & (ints(events, "correlation", -1) >= 0))
    room = np.zeros(events.num_rows, bool)
    room[known] = _queued(events, ints(events, "ts", 0)[known]) < QUEUE_ROOM
    return room


def _queued(events: pa.Table, times: I64) -> I64:
    """Return how many launches wait for the device at each of `times`; those before the recording count as well."""
    start, number, cat = ints(events, "ts", 0), ints(events, "correlation", -1), categories(events)
    ran = np.flatnonzero(cat.among(DEVICE_WORK))
    ran = ran[np.argsort(start[ran], kind="stable")]
    launched = cat.among(DEVICE_CALLS) & (number >= 0) & np.isin(number, number[ran])
    ahead = ran[~np.isin(number[ran], number[launched])]
    _, first = np.unique(number[ran], return_index=True)  # a graph has one launch, and many kernels
    heads = ran[first][np.isin(number[ran[first]], number[launched])]
    begun, issued = np.sort(np.concatenate([start[heads], start[ahead]])), np.sort(start[launched])
    waiting = np.searchsorted(issued, times, "right") - np.searchsorted(begun, times, "right")
    return np.asarray(len(ahead) + waiting, np.int64)
