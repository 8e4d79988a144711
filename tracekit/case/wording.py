"""Phrases that the sentences of several verdicts share, and the advice which traces to add first."""

from collections import defaultdict
from collections.abc import Collection, Sequence

from tracekit.mesh import Mesh
from tracekit.text import ranges
from tracekit.thresholds.slowrank import RANKS_LISTED
from tracekit.timing.measured import Measured
from tracekit.units import ms


def listed(values: Sequence[object]) -> str:
    """Return the first few of `values`, and their number if there are more."""
    shown = ", ".join(map(str, values[:RANKS_LISTED]))
    return shown + (f", … ({len(values)} in all)" if len(values) > RANKS_LISTED else "")


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return `rank 5`, or `ranks 5, 6`, as `listed`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {listed(ranks)}"


def first_in_words(ranks: Sequence[int], shown: int = 1) -> str:
    """Return `rank 5`, or `rank 5 and 3 more`: the first `shown` of `ranks`, and how many follow."""
    more = len(ranks) - shown
    return f"rank {listed(ranks[:shown])}{f' and {more} more' if more > 0 else ''}"


def of_step(run: Measured, ns: float) -> str:
    """Return `3.1 ms of 50.0 ms a step` for a time of `ns` a step."""
    return f"{ms(ns):.1f} ms of {ms(run.step_ns):.1f} ms a step"


class Remedy(str):
    """A sentence that says what would decide; `ranks` are those whose traces to add, for programs."""

    __slots__ = ("ranks",)
    ranks: tuple[int, ...]


def add_traces(ranks: Sequence[int], why: str = "") -> Remedy:
    """Return what to do about ranks without a trace, and why these."""
    shown = ranges(sorted(ranks), RANKS_LISTED)
    more = f" ({len(ranks)} in all)" if shown.endswith("…") else ""
    many = "" if len(ranks) == 1 else "s"
    remedy = Remedy(f"add the trace{many} of rank{many} {shown}{more}{f': {why}' if why else ''}")
    remedy.ranks = tuple(sorted(ranks))
    return remedy


# Which traces to add first: the fewest that can decide, where many ranks left none.
#
# People record part of a large job. A replica that was recorded in part is completed first: its pipeline then
# shows every wait inside. Where the recorded replicas are whole, one rank of each other replica shows which
# replica comes late.


def fewest_traces(run: Measured, lacking: Sequence[int]) -> Remedy:
    """Return the advice to add the fewest traces that can decide, of the ranks that an answer lacks."""
    mesh, recorded, missing = run.mesh, run.ops.ranks, run.missing
    partial, others = completing(mesh, recorded, missing), one_each(mesh, recorded, missing)
    if partial and len(partial) < len(lacking):
        return add_traces(partial, "they complete the replica that lacks the fewest traces")
    if not partial and others and len(others) < len(lacking):
        return add_traces(others, "one of each other replica, which shows the replica that comes late")
    return add_traces(lacking)


def completing(mesh: Mesh, recorded: Collection[int], lacking: Collection[int]) -> tuple[int, ...]:
    """Return the lacking ranks of the data-parallel replica that the fewest complete; none where all are whole."""
    begun = {mesh.replica(rank) for rank in recorded if rank in mesh.coordinates}
    missing: dict[int, list[int]] = defaultdict(list)
    for rank in sorted(lacking):
        if rank in mesh.coordinates and mesh.replica(rank) in begun:
            missing[mesh.replica(rank)].append(rank)
    return tuple(*sorted(missing.values(), key=len)[:1])


def one_each(mesh: Mesh, recorded: Collection[int], lacking: Collection[int]) -> tuple[int, ...]:
    """Return the lacking ranks that have the place of the first recorded rank in other data-parallel replicas."""
    first = min((rank for rank in recorded if rank in mesh.coordinates), default=None)
    wanted = set(lacking)
    return () if first is None else tuple(rank for rank in mesh.counterparts(first) if rank in wanted)


def slow_transfers(ranks: Sequence[int], ratio: float) -> str:
    """Return the clause that transfers of `ranks` take `ratio` times as long as their peers' transfers."""
    return f"transfers of {ranks_in_words(ranks)} take {ratio:.1f} times as long as their peers'"
