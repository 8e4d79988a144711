"""From one rank's events to its communication operations and its compute intervals."""

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tracekit.intervals import empty
from tracekit.rank_events.arguments import read_arguments, resolve_groups
from tracekit.rank_events.coded_words import Column, among
from tracekit.rank_events.compute import DEVICE_WORK, communicates, compute_intervals, operator_intervals
from tracekit.rank_events.event_columns import DEVICE_CALLS, categories, holds, ints, present, truth
from tracekit.rank_events.host_events import Enclosing, Host, host_held, host_of
from tracekit.rank_events.kernel_order import Launched, kernel_order, window_of
from tracekit.rank_events.kernel_records import alone, join
from tracekit.rank_events.operation_names import CALL_OPS, UNDIRECTED, canonical_op
from tracekit.rank_events.rank_ops import KernelOrder, RankOps
from tracekit.rank_events.step_marks import (
    captures,
    issue_times,
    label,
    launch_rows,
    run_ahead,
    step_spans,
    step_work,
)
from tracekit.rank_events.stream_waits import HOST_WAIT, ready_times, waited_for
from tracekit.schema import Group
from tracekit.store import Run
from tracekit.thresholds.slowrank import TIME_SLICE_NS
from tracekit.thresholds.tables import COUNTED_SHARE, MOST_BEHIND_MARKS, RESUME_SLACK_NS, RESUME_SLACK_SHARE
from tracekit.units import I64, Mask

_COLUMNS = [
    "ts", "dur", "cat", "name", "pid", "tid", "device", "stream", "correlation", "external_id",
    "collective", "dtype", "in_nelems", "out_nelems", "group", "group_size", "pg_name", "pg_desc", "src_rank",
    "dst_rank", "group_rank", "seq", "input_peer", "grid", "wait_stream", "wait_record",
]  # fmt: skip
_MESSAGE: Final = re.compile(r"^gloo:(send|recv)$")
_SEND: Final = re.compile(r"^gloo:send$")
_TRANSPORT: Final = re.compile(r"^gloo:(?!send|recv)")
_CALL: Final = re.compile(rf"^({'|'.join(CALL_OPS)})$")
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation", "cuda_sync")


def read_rank(run: Run, rank: int, *, marked: bool = True, windows: Sequence[int] = ()) -> RankOps:
    """Return operations and compute intervals of `rank`; KeyError for an unknown rank, InputError on a bad file.

    Step marks are read only if `marked`. `windows` are the begins of recording windows, ns, instead of those of `run`.
    """
    events = run.events(rank, _COLUMNS)
    mine = run.groups_of(rank)
    return rank_ops(
        rank, resolve_groups(events, mine), mine, windows or run.record(rank).windows, marked=marked
    )


def rank_ops(
    rank: int, events: pa.Table, groups: Sequence[Group] = (), windows: Sequence[int] = (), *, marked: bool = True
) -> RankOps:  # fmt: skip
    """Return operations and compute intervals of `rank` from its event table (schema.EVENTS).

    groups: process groups of the run that hold the rank; without them, peers named by their place in one are unknown.
    windows: begins of its recording windows, ns, where there are several. Step marks are read only if `marked`.
    """
    if not events.num_rows:
        return _nothing(rank)
    host, cat = host_of(events), categories(events)
    on_gpu = bool((cat == "kernel").any())
    comm = communicates(events, cat == "kernel", on_gpu=on_gpu)
    threaded = not (on_gpu or present(events, "collective").any())
    start, end, found = message_times(events, host, comm & threaded)
    busy = compute_intervals(events, cat, comm, host, start, end, on_gpu=on_gpu)
    end = transport_ends(events, start, end, comm & (not on_gpu) & (not threaded))
    rows = _in_order(comm, start)
    steps = _marked(events, cat, host, rows, start) if marked else {}
    begins = captures(steps, start, windows)
    launches = launch_rows(events, cat, np.arange(events.num_rows), begins)
    joined = join(events, cat, host, rows, launches) if on_gpu else alone(rows)
    args = read_arguments(rank, events, cat, host, rows, joined, groups)
    carriers = rows[joined.kernel]
    stream = ints(events, "stream", -1)[carriers]
    issued = issue_times(_launches(joined.launch, marked=marked), stream, start[carriers], start, begins)
    asked = (events, cat, comm, carriers, issued, start, end, launches, _received(args.op, joined.kernel))
    ready, used, usable = ready_times(*asked, begins) if on_gpu else (None, None, None)
    lane = np.where(among(args.op, UNDIRECTED), -1, host.tid[rows]) if threaded else stream
    return RankOps(
        rank, on_gpu, start[carriers], end[rows[joined.last]], args.op, args.token, args.group, args.src, args.dst,
        args.seq, args.nelems, label(issued, steps), busy, joined.kernel, issued, steps,
        (int(start.min()), int(end.max())), ready, lane, args.way, opens=opens_of(events, cat, begins),
        order=None if steps else _order(events, cat, comm, start, end, launches, begins, marked=marked),
        operators=None if on_gpu else operator_intervals(events, cat, host, busy), taken=args.taken, place=args.place,
        worked=_worked(events, cat, start, end, launches, begins, steps), used=used, usable=usable, own=args.own,
        waited=waited_for(events, cat, comm, carriers, end, launches), grid=ints(events, "grid", -1)[carriers],
        device=_device(events, carriers), timed=_timed(cat, end > start), found=found[carriers], begins=tuple(begins),
        held=host_held(events, cat, host, comm, carriers, busy, launches) if on_gpu else None, group_size=args.size,
    )  # fmt: skip


def _timed(cat: Column, lasted: Mask) -> bool:
    """Whether nearly all kernels took time; those of damaged events take none, which no kernel does."""
    kernel = cat == "kernel"
    return not kernel.any() or float(lasted[kernel].mean()) >= COUNTED_SHARE


def _marked(events: pa.Table, cat: Column, host: Host, rows: I64, start: I64) -> dict[int, tuple[int, int]]:
    """The marked steps, as `step_spans`; none if the marks say nothing about the operations `rows`."""
    steps = step_spans(events, cat, host.start, host.end)
    return {} if (cat == "kernel").any() and run_ahead(steps, cat, rows, start) else steps


def _launches(launch: I64, *, marked: bool) -> I64:
    """Return the `launch` rows of kernels; all -1 if marks are not read and most launches are before the window.

    The rare launches of a host that runs steps ahead show the steps of its last kernels only; the begins of all
    kernels show the steps of all.
    """
    ahead = not marked and float((launch < 0).mean() if len(launch) else 0.0) > MOST_BEHIND_MARKS
    return np.full_like(launch, -1) if ahead else launch


def _received(op: Sequence[str], kernel: I64) -> Mask:
    """Return whether each operation is the first message that its kernel receives."""
    rows = np.flatnonzero(np.array(op, object) == "recv")
    first = np.zeros(len(op), bool)
    first[rows[np.unique(kernel[rows], return_index=True)[1]]] = True
    return first


def _device(events: pa.Table, carriers: I64) -> int:
    """Return the device that runs the kernels `carriers`; -1 where the trace names none, or several."""
    named = np.unique(ints(events, "device", -1)[carriers])
    return int(named[0]) if len(named) == 1 else -1


def _in_order(comm: Mask, start: I64) -> I64:
    """Return the events that communicate, in order of start."""
    rows = np.flatnonzero(comm)
    return rows[np.argsort(start[rows], kind="stable")]


def _order(
    events: pa.Table,
    cat: Column,
    comm: Mask,
    start: I64,
    end: I64,
    launches: I64,
    begins: Sequence[int],
    *,
    marked: bool,
) -> KernelOrder | None:
    """Return the kernels of the device in order; None without compute kernels.

    `launches` are the rows of all events' launches, `begins` are of windows.
    """
    rows = np.flatnonzero(cat == "kernel")
    stream = ints(events, "stream", -1)[rows]
    launch = _launches(launches[rows], marked=marked)
    issued = issue_times(launch, stream, start[rows], start, begins)
    return kernel_order(events, cat, comm, Launched(rows, stream, issued), start, end, begins)


def _worked(
    events: pa.Table,
    cat: Column,
    start: I64,
    end: I64,
    launches: I64,
    begins: Sequence[int],
    steps: dict[int, tuple[int, int]],
) -> dict[int, tuple[int, int]]:
    """Return begin and end of the work of each marked step, ns, as `step_work`; `launches` and `begins` as `_order`."""
    rows = np.flatnonzero(cat.among(DEVICE_WORK) & bool(steps))
    rows = rows[np.argsort(start[rows], kind="stable")]
    issued = issue_times(launches[rows], ints(events, "stream", -1)[rows], start[rows], start, begins)
    return step_work(steps, issued, end[rows], begins)


def _nothing(rank: int) -> RankOps:
    none64, none32 = np.zeros(0, np.int64), np.zeros(0, np.int32)
    return RankOps(
        rank, False, none64, none64, (), (), none32, none32, none32, none64, none64, none32, empty(), none64,
        none64,
    )  # fmt: skip


# Finds when communication on Gloo began and ended; spans show when the host called for it and looked for it.
#
# The span of a message begins when the call that posts it is nearly over, though that call may wait, and ends
# when the host has waited for it. The host waits for one message after the other, so a send that was done long
# before is found done at once, and its span ends together with the span that the host waited for before.


def message_times(events: pa.Table, host: Host, comm: Mask) -> tuple[I64, I64, Mask]:
    """Return starts and ends of all events, ns, and whether the host found each done when it looked for it.

    A message begins with its call. A send that was found done ends with its call.
    """
    start, end, found = host.start.copy(), host.end.copy(), np.zeros(len(host.start), bool)
    if not comm.any():
        return start, end, found
    calls = Enclosing(host, np.flatnonzero(truth(events, "name", _CALL)))
    sends = truth(events, "name", _SEND)
    before = _done_before(host)
    for row in np.flatnonzero(comm & truth(events, "name", _MESSAGE)).tolist():
        call = calls.around(row)
        if call < 0:
            continue
        start[row] = host.start[call]
        lasted = int(host.end[row] - host.start[row])
        waited = int(host.end[row] - before[row])
        found[row] = waited <= max(RESUME_SLACK_NS, RESUME_SLACK_SHARE * lasted)
        if found[row] and sends[row]:
            end[row] = min(int(host.end[call]), int(host.end[row]))
    return start, end, found


def _done_before(host: Host) -> I64:
    """Return for each event when its thread had last ended anything before it ended itself, ns; else its start."""
    found = host.start.copy()
    for pid, tid in sorted(set(zip(host.pid.tolist(), host.tid.tolist(), strict=True))):
        rows = np.flatnonzero((host.pid == pid) & (host.tid == tid))
        ends = np.unique(host.end[rows])
        place = np.searchsorted(ends, host.end[rows]) - 1
        found[rows] = np.where(
            place >= 0, np.maximum(ends[np.maximum(place, 0)], host.start[rows]), host.start[rows]
        )
    return found


def transport_ends(events: pa.Table, start: I64, end: I64, call: Mask) -> I64:
    """Return the ends of all events, ns; an annotated collective `call` ends with its transport.

    The span of a call ends when its host goes on, and that of its transport, on a thread of Gloo, when the rank has all
    that it needs. From then on no other rank is waited for: a host that is stopped spends its own time. Only what
    exceeds a time slice is cut off, because any thread may wait for one. A call keeps its end where it overlaps another
    call, or where not exactly one transport lies in it. It keeps its begin: what delays a transport may be a queue.
    """
    calls, its = (
        rows[np.argsort(start[rows], kind="stable")]
        for rows in (
            np.flatnonzero(call & holds(events, "collective", _is_collective)),
            np.flatnonzero(truth(events, "name", _TRANSPORT)),
        )
    )
    if not len(calls) or not len(its):
        return end
    begin, until = start[calls], end[calls]
    first, after = np.searchsorted(start[its], begin), np.searchsorted(start[its], until, side="right")
    last = np.maximum.accumulate(until)
    apart = np.append(True, last[:-1] <= begin[1:]) & np.append(begin[1:] >= last[:-1], True)
    done = end[its[np.minimum(first, len(its) - 1)]]
    stays = apart & (after - first == 1) & (until - done > TIME_SLICE_NS)
    result = end.copy()
    result[calls[stays]] = done[stays]
    return result


def _is_collective(name: str | None) -> bool:
    return bool(name) and canonical_op(str(name)) not in UNDIRECTED


# Finds when the host was free to go on in each recording window.
#
# A profiler that starts while the host is in a call that waits for the device records that wait. It belongs
# to the step before: its device still works off what was launched ahead of the window.


def opens_of(events: pa.Table, cat: Column, begins: Sequence[int]) -> tuple[int, ...]:
    """Return the end of the wait for the device that begins each window on its host, ns; else the window's begin."""
    opens = list(begins)
    start = ints(events, "ts", 0)
    hosts = np.flatnonzero(~cat.among(_ON_DEVICE))
    hosts = hosts[np.argsort(start[hosts], kind="stable")]
    window = window_of(start[hosts], begins)
    waits = cat.among(DEVICE_CALLS) & truth(events, "name", HOST_WAIT)
    for number in np.unique(window).tolist():
        first = hosts[np.searchsorted(window, number)]
        if waits[first]:
            opens[number] = int(start[first] + ints(events, "dur", 0)[first])
    return tuple(opens)
