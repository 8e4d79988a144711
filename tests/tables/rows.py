"""Hand-made recordings of ranks: a few rows of schema.EVENTS, times in microseconds."""

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tracekit.matching.match import Operations, match
from tracekit.rank_events.operations import rank_ops
from tracekit.rank_events.rank_ops import RankOps
from tracekit.schema import EVENTS, Group

Row = dict[str, Any]
LARGE = 1 << 20  # elements of a message: 4 MiB, which may go to a buffer or not


def row(cat: str, name: str, begin: float, us: float, **more: Any) -> Row:
    """One event."""
    return {"ts": round(begin * 1000), "dur": round(us * 1000), "cat": cat, "name": name, **more}


def gemm(begin: float, us: float, name: str = "gemm", **more: Any) -> Row:
    """Compute on the device."""
    return row("kernel", name, begin, us, **more)


def step(number: int, begin: float, us: float) -> Row:
    """A profiler step on the host."""
    return row("user_annotation", f"ProfilerStep#{number}", begin, us)


def comm(begin: float, us: float, group: int | None, op: str = "allreduce", **more: Any) -> Row:
    """A collective kernel that carries its arguments."""
    nelems = more.pop("nelems", 1024)
    args = {"collective": op, "group": group, "in_nelems": nelems, "out_nelems": nelems, "dtype": "Float"}
    return row("kernel", f"ncclDevKernel_{op}", begin, us, **(args | more))


def send(begin: float, us: float, src: int, dst: int, **more: Any) -> Row:
    """A message as its sender sees it."""
    return comm(begin, us, None, "send", **({"src_rank": src, "dst_rank": dst, "nelems": LARGE} | more))


def recv(begin: float, us: float, src: int, dst: int, **more: Any) -> Row:
    """A message as its receiver sees it."""
    return comm(begin, us, None, "recv", **({"src_rank": src, "dst_rank": dst, "nelems": LARGE} | more))


def record(begin: float, us: float, op: str, **more: Any) -> Row:
    """What the host says of a call, on the main thread."""
    return row("cpu_op", "record_param_comms", begin, us, **({"collective": op, "pid": 1, "tid": 1} | more))


def title(begin: float, us: float, name: str = "nccl:coalesced", **more: Any) -> Row:
    """A title that c10d gives to work, on the main thread."""
    return row("user_annotation", name, begin, us, **({"pid": 1, "tid": 1} | more))


def launch(begin: float, correlation: int, **more: Any) -> Row:
    """The launch of a kernel, on the main thread."""
    ids = {"correlation": correlation, "pid": 1, "tid": 1}
    return row("cuda_runtime", "cudaLaunchKernelExC", begin, 1, **(ids | more))


def bare(begin: float, us: float, correlation: int, **more: Any) -> Row:
    """A point-to-point kernel that says nothing of its messages."""
    return row("kernel", "ncclDevKernel_SendRecv", begin, us, correlation=correlation, **more)


def events(rows: Sequence[Row]) -> pa.Table:
    """The event table, sorted as the store sorts it."""
    ordered = sorted(rows, key=lambda r: (r["ts"], -r["dur"]))
    return pa.Table.from_pylist([dict.fromkeys(EVENTS.names) | r for r in ordered], schema=EVENTS)


def recorded(rank: int, *rows: Row, groups: Sequence[Group] = (), windows: Sequence[int] = ()) -> RankOps:
    """One rank's operations; `windows` begin at these times, ns."""
    return rank_ops(rank, events(rows), [g for g in groups if rank in g.ranks], windows)


def group(number: int, *ranks: int) -> Group:
    """A process group that nothing describes."""
    return Group(number, ranks, (str(number),), ())


def matched(ranks: Mapping[int, Sequence[Row]], *groups: Group) -> Operations:
    """Operations of several ranks, matched."""
    return match([recorded(r, *rows, groups=groups) for r, rows in ranks.items()], groups)


def shifted(rows: Sequence[Row], us: float, rate: float = 0.0) -> list[Row]:
    """The same rows by a clock that is ahead by `us` and gains `rate`."""

    def told(ns: int) -> int:
        return round(ns * (1 + rate)) + round(us * 1000)

    return [r | {"ts": told(r["ts"]), "dur": told(r["ts"] + r["dur"]) - told(r["ts"])} for r in rows]


def partners(ops: Operations) -> list[list[tuple[int, int]]]:
    """Each instance as (rank, ordinal of the operation on that rank), sorted."""
    found: dict[int, list[tuple[int, int]]] = {}
    for i, instance in enumerate(ops.instance.tolist()):
        if instance >= 0:
            r = int(ops.rank[i])
            found.setdefault(instance, []).append((r, i - ops.first[r]))
    return sorted(sorted(v) for v in found.values())
