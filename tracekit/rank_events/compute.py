"""Which events communicate and which compute, and when the rank computed.

On a GPU trace both are kernels. On a CPU trace communication is an annotated host span and compute an operator.
"""

import re

import numpy as np
import pyarrow as pa

from tracekit.intervals import Intervals, empty, intersect, subtract, union
from tracekit.rank_events.coded_words import Column
from tracekit.rank_events.event_columns import categories, holds, ints, latest, matches, present, truth
from tracekit.rank_events.host_events import Host
from tracekit.units import I64, Mask

COMM_KERNEL = re.compile(
    r"nccl|rccl|cross_device_reduce|multimem_|one_shot_all_reduce|two_shot_all_reduce|all_?reduce_fusion|trtllm_all_?reduce"
    r"|deep_ep::(?!layout)|userbuffers|symmetric_memory::|nvshmem|mscclpp",
    re.IGNORECASE,
)
_RECORD = re.compile(r"^record_param_comms$")
_GLOO = re.compile(r"^gloo:")
_MESSAGE = re.compile(r"^gloo:(send|recv)$")
"""A message on Gloo: its span ends when the host has waited for it, on the thread that computes meanwhile."""
NOT_COMPUTE = re.compile(r"^(c10d::|_c10d_functional|record_param_comms|gloo:|nccl:)")
"""A call of a collective, which is no compute although it is an operator."""
OPERATOR = re.compile(r"^(?!autograd::|torch::autograd::)\w[\w.]*::|^(cpp|triton|extern_kernels)[_.]")
"""An operator of the dispatcher, or a kernel of the compiler. Other spans of a CPU trace are nodes of autograd and
functions written in Python: they run hooks and Python code between the operators, which may pause."""

DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")


def communicates(events: pa.Table, kernel: Mask, *, on_gpu: bool) -> Mask:
    """Whether each event is communication: kernels on a GPU trace, annotated spans (else Gloo's own) on a CPU trace.

    A kernel that names no library known here, as oneCCL's, is communication if the record of a collective launched it.
    Where spans are annotated, a record that lost its arguments counts too.
    """
    annotated = present(events, "collective")
    if on_gpu:
        shown = kernel & (annotated | truth(events, "name", COMM_KERNEL))
        return shown | _launched_by_records(events, kernel & ~shown)
    if annotated.any():
        return annotated | truth(events, "name", _RECORD)
    return truth(events, "name", _GLOO)


def _launched_by_records(events: pa.Table, kernel: Mask) -> Mask:
    """Whether every known launch of kernels with this name lies in the record of a collective.

    The kernel's `External id` is that of the innermost operator around its launch; a later recording may use it again.
    """
    external, start = ints(events, "external_id", -1), ints(events, "ts", 0)
    records = truth(events, "name", _RECORD) & holds(events, "collective", lambda op: op and op != "wait")
    if not (asked := np.flatnonzero(kernel & (external >= 0) & np.isin(external, external[records]))).size:
        return np.zeros(events.num_rows, bool)
    operators = (categories(events) == "cpu_op") & np.isin(external, external[asked])
    hosts = np.flatnonzero(operators)
    around = hosts[latest(external[hosts], start[hosts], external[asked], start[asked])]
    name = matches(events, "name", lambda text: text or "")
    talking = set(name[asked[records[around]]])
    computing = kernel & (external >= 0)
    computing[asked[records[around]]] = False
    return kernel & np.isin(name, sorted(talking - set(name[computing])))


def compute_intervals(
    events: pa.Table, cat: Column, comm: Mask, host: Host, start: I64, end: I64, *, on_gpu: bool
) -> Intervals:
    """Return when the rank computed, ns: device work on a GPU trace, operator and autograd spans on a CPU trace.

    Calls of collectives and waits for them are no compute, even inside an operator: one on a DTensor waits for the
    tensor of an earlier collective. Nor is what they run on their thread, such as Gloo's copies of the result: as
    compute it would make the wait in the call look hidden, or the time before the copy the rank's own.
    """
    if on_gpu:
        rows = cat.among(DEVICE_WORK) & ~comm
        return union(start[rows], end[rows])
    called = (comm | truth(events, "name", NOT_COMPUTE)) & ~truth(events, "name", _MESSAGE)
    work = np.flatnonzero((cat == "cpu_op") & ~comm & ~called)
    work = work[~_contain_communication(start[work], end[work], start[comm], end[comm])]
    parts = []
    for thread in np.unique(host.tid[work]).tolist():
        mine, waits = work[host.tid[work] == thread], called & (host.tid == thread)
        parts.append(subtract(union(start[mine], end[mine]), union(host.start[waits], host.end[waits])))
    return union(*(np.concatenate(side) for side in zip(*parts, strict=True))) if parts else empty()


def operator_intervals(events: pa.Table, cat: Column, host: Host, busy: Intervals) -> Intervals:
    """Return the part of `busy` of a CPU trace in which operators ran, ns; the rest is Python inside autograd nodes."""
    operator = (cat == "cpu_op") & truth(events, "name", OPERATOR)
    return intersect(busy, union(host.start[operator], host.end[operator])) if operator.any() else busy


def _contain_communication(start: I64, end: I64, comm_start: I64, comm_end: I64) -> Mask:
    """Whether each operator contains a whole communication span: the wait inside is no compute."""
    if not len(comm_start):
        return np.zeros(len(start), bool)
    order = np.argsort(comm_start, kind="stable")
    begin, finish = comm_start[order], comm_end[order]
    soonest = np.minimum.accumulate(finish[::-1])[::-1]  # earliest end among spans that start later
    place = np.searchsorted(begin, start, side="left")
    return np.asarray((place < len(begin)) & (soonest[np.minimum(place, len(begin) - 1)] <= end), bool)
