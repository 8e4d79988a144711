"""Joins each communication kernel to the host-side records that it carries out: its operations.

A kernel is joined to its record by the `External id` of its arguments, else by its launch, which lies inside the
record. A batch (`batch_isend_irecv`) has one kernel for many messages, without arguments: its members are the messages
that the launching thread recorded since the batch before it, and that have no kernel of their own.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from tracekit.rank_events.coded_words import Column
from tracekit.rank_events.event_columns import filled, holds, ints, latest, matches, present
from tracekit.rank_events.host_events import Enclosing, Host, Thread
from tracekit.rank_events.operation_names import CALL_OPS, MESSAGES, canonical_op
from tracekit.thresholds.tables import MAX_BATCH_MEMBERS
from tracekit.units import I64, Mask

RECORD: Final = "record_param_comms"
"""Name of the host-side records; up to torch 2.3 they name the operation in no other way."""

COALESCED: Final = "nccl:coalesced"
"""Title of a batch on the host; up to torch 2.8 only its begin is valid, because torch never ended the span."""


@dataclass(frozen=True)
class Joined:
    """Operations of communication kernels; one entry an operation, grouped by kernel."""

    kernel: I64  # the kernel, as a position in the rows asked for
    args: I64  # event row with the arguments
    host: I64  # event row of the host-side record, -1 where there is none
    launch: I64  # event row of the launch, -1 where there is none
    last: (
        I64  # the kernel that ends the operation, as a position in the rows asked for: big batches are split
    )


def alone(rows: I64) -> Joined:
    """Return every event of `rows` as an operation with its own arguments, since a host event is its own record."""
    none = np.full(len(rows), -1, np.int64)
    place = np.arange(len(rows))
    return Joined(place, rows, rows, none, place)


def join(events: pa.Table, cat: Column, host: Host, rows: I64, launches: I64) -> Joined:
    """Return the operations of the kernels `rows`, in order of kernels; `cat` and `launches` (rows) are per event."""
    own = present(events, "collective")[rows]
    op = matches(events, "collective", _recorded_op)
    on_host = ~cat.among(["kernel", "gpu_user_annotation"])
    records = np.flatnonzero(filled(events, "collective", _recorded_op) & on_host)
    launch = launches[rows]
    record = _by_external_id(events, rows, records, launch, host)
    calls = Enclosing(host, records)
    for k in np.flatnonzero((record < 0) & (launch >= 0)):
        record[k] = calls.around(int(launch[k]))
    name = matches(events, "name", lambda v: canonical_op(v or ""))
    kinds = np.where(own, op[rows], np.where(record >= 0, op[record], name[rows]))
    taken = record[(kinds != "send_recv") & (record >= 0)]
    on_record = records[holds(events, "collective", lambda v: _recorded_op(v) in MESSAGES)[records]]
    called = _called(events, on_host, host, records, launch[own & (launch >= 0)])
    messages = np.concatenate([_without(on_record, taken, len(cat)), called])
    titles = np.flatnonzero(holds(events, "name", lambda v: v == COALESCED) & (cat != "gpu_user_annotation"))
    bare = (kinds == "other") & (record < 0)  # RCCL's kernels have one name, whatever they do
    kernels = np.flatnonzero(((kinds == "send_recv") | bare) & (launch >= 0))
    batches = _batches(kernels, launch, messages, titles, host)
    return _expanded(rows, own, record, launch, _on_one_stream(batches, ints(events, "stream", -1)[rows]))


def _recorded_op(collective: str | None) -> str | None:
    """Return the canonical name of what a record carries out; None for a wait, or without a name."""
    return canonical_op(collective) if collective and collective != "wait" else None


def _called(events: pa.Table, on_host: Mask, host: Host, records: I64, telling: I64) -> I64:
    """Return messages that only a call (`c10d::send`) names: the nameless record inside it (torch 2.2), else the call.

    A call around the launch of a kernel with arguments is left out.
    """
    calls = np.flatnonzero(holds(events, "name", lambda v: CALL_OPS.get(v or "")) & on_host)
    unnamed = holds(events, "name", lambda v: v == RECORD) & on_host
    nameless = _without(np.flatnonzero(unnamed), records, len(unnamed))
    named, inside = Enclosing(host, np.concatenate([records, telling])), Enclosing(host, nameless)
    found = [(c, inside.within(c)) for c in calls.tolist() if named.within(c) < 0]
    return np.array([record if record >= 0 else call for call, record in found], np.int64)


def _without(rows: I64, others: I64, count: int) -> I64:
    """Return the `rows` of `count` events that are not among the `others`, sorted, each once."""
    left = np.zeros(count, bool)
    left[rows] = True
    left[others] = False
    return np.flatnonzero(left)


def _by_external_id(events: pa.Table, rows: I64, records: I64, launch: I64, host: Host) -> I64:
    """Return for each kernel the record with its `External id`, -1 without one.

    Up to torch 2.5 a kernel without a record carries its correlation there, which may be the id of any other event:
    such an id counts only if the launch lies inside the record.
    """
    external, correlation = ints(events, "external_id", -1), ints(events, "correlation", -1)
    hosts = records[external[records] >= 0]
    wanted = external[rows]
    place = latest(external[hosts], host.start[hosts], wanted, host.start[rows])
    named = (place >= 0) & (wanted >= 0)
    found = np.where(named, np.append(hosts, -1)[place], -1)
    for k in np.flatnonzero(named & (wanted == correlation[rows]) & (launch >= 0)):
        if not host.encloses(int(found[k]), int(launch[k])):
            found[k] = -1
    return found


@dataclass
class _Batch:
    """Kernels of one batch, in order of launch, and the records of its messages, in order of issue."""

    kernels: list[int]
    members: list[int]


def _batches(kernels: I64, launch: I64, messages: I64, titles: I64, host: Host) -> list[_Batch]:
    """Return the batches that launched `kernels`, without batches of unknown members."""
    launched: dict[Thread, list[tuple[int, int]]] = defaultdict(list)
    for k in kernels.tolist():
        launched[host.thread(int(launch[k]))].append((int(host.start[launch[k]]), k))
    recorded: dict[Thread, list[tuple[int, int]]] = defaultdict(list)
    for row in messages.tolist():
        recorded[host.thread(row)].append((int(host.start[row]), row))
    titled: dict[Thread, list[int]] = defaultdict(list)
    for row in titles.tolist():
        titled[host.thread(row)].append(int(host.start[row]))
    found: list[_Batch] = []
    for thread, calls in launched.items():
        found += _of_thread(sorted(calls), sorted(recorded[thread]), sorted(titled[thread]))
    return found


def _on_one_stream(batches: list[_Batch], stream: I64) -> list[_Batch]:
    """Return the batches without kernels of another `stream` (by kernel) than their first, which are all-to-alls."""
    return [
        _Batch([k for k in batch.kernels if stream[k] == stream[batch.kernels[0]]], batch.members)
        for batch in batches
    ]


def _of_thread(
    launched: list[tuple[int, int]], recorded: list[tuple[int, int]], titled: list[int]
) -> list[_Batch]:
    """Return the batches of one thread from (launch, kernel), (begin, message record) and begins of titles; sorted, ns.

    Without any title on the thread, a batch holds all messages recorded since the launch before it.
    """
    found: list[_Batch] = []
    since, opened = 0, -1  # the first record of the next batch, the title of the last one
    for moment, kernel in launched:
        title = bisect_right(titled, moment) - 1
        if titled and title < 0:
            continue
        upto = bisect_right(recorded, (moment, -1))
        fresh = recorded[max(since, _after_title(recorded, titled, title, upto)) : upto]
        since = upto
        if fresh:
            known = len(fresh) <= MAX_BATCH_MEMBERS
            opened = title if known else -1
            found += [_Batch([kernel], [r for _, r in fresh])] if known else []
        elif title >= 0 and title == opened:
            found[-1].kernels.append(kernel)
    return found


def _after_title(recorded: list[tuple[int, int]], titled: list[int], title: int, upto: int) -> int:
    """Return the first record that may belong to the batch `title`: inside it if any, else after the previous title."""
    if title < 0:
        return 0
    inside = bisect_left(recorded, (titled[title], -1))
    if inside < upto:
        return inside
    return bisect_left(recorded, (titled[title - 1], -1)) if title else 0


def _expanded(rows: I64, own: Mask, records: I64, launch: I64, batches: list[_Batch]) -> Joined:
    """Return one entry an operation: the members of each batch at its first kernel, every other kernel by itself."""
    last, count = np.arange(len(rows)), np.ones(len(rows), np.int64)
    batches = sorted(batches, key=lambda batch: batch.kernels[0])
    for batch in batches:
        count[batch.kernels] = 0
        count[batch.kernels[0]], last[batch.kernels[0]] = len(batch.members), batch.kernels[-1]
    kernel = np.repeat(np.arange(len(rows)), count)
    args, host = np.where(own | (records < 0), rows, records)[kernel], records[kernel]
    batched = (
        np.isin(kernel, [batch.kernels[0] for batch in batches]) if batches else np.zeros(len(kernel), bool)
    )
    args[batched] = host[batched] = [member for batch in batches for member in batch.members]
    return Joined(kernel, args, host, launch[kernel], last[kernel])
