"""A rank that comes to collectives late in its own time, though it works no longer than its peers.

Copies from the host, work on other streams or a host that is late put a collective off without making the step's work
longer: no own time shows them, and the replay, which keeps them, prices nobody. The others wait all the same.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from tracekit.analysis.slowrank.candidates import significant_rows
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.suspects import Answer, suspect_of
from tracekit.tables.intervals import I64
from tracekit.thresholds.slowrank import MAJORITY, MIN_LOST_SHARE
from tracekit.units import ms


@dataclass(frozen=True)
class LatePosts:
    """The rank that posts late (row of Steps), and for how long most others stand still for that, ns a step."""

    row: int
    waited: float


def late_posts(case: Case) -> LatePosts | None:
    """The rank that comes last in most steps, late in its own time; None where nobody loses much by it.

    What others wait for it counts as far as it did more of its own work before the collective than most of them. The
    median over steps counts, which chance gives to nobody; a rank that clearly works longer is not meant.
    """
    waited = _waits(case)
    usual = {row: float(np.median(by_step)) for row, by_step in waited.items()}
    row = max(usual, key=lambda r: (usual[r], -r), default=None)
    if row is None or usual[row] < MIN_LOST_SHARE * case.step_ns:
        return None
    next_ = max((v for r, v in usual.items() if r != row), default=0.0)
    often = float((waited[row] >= MAJORITY * usual[row]).mean()) > MAJORITY
    told = (
        float(np.nanmean(case.met.told[row])) >= MAJORITY * usual[row]
    )  # communication or tokens explain as much
    longer = row in significant_rows(case, MIN_LOST_SHARE)
    return (
        None if told or longer or not often or next_ > MAJORITY * usual[row] else LatePosts(row, usual[row])
    )


def _waits(case: Case) -> dict[int, np.ndarray]:
    """Row of a rank → ns by step for which most members of its collectives wait because it posts them late."""
    found: dict[int, np.ndarray] = defaultdict(lambda: np.zeros(len(case.steps.numbers)))
    column = {number: i for i, number in enumerate(case.steps.numbers)}
    row_of = {rank: i for i, rank in enumerate(case.steps.ranks)}
    begin = case.steps.begin
    for last, members in _instances(case):
        at = column[int(case.ops.step[last])] if case.steps.labelled else 0
        rows = np.array([row_of[int(r)] for r in case.ops.rank[members]])
        done = case.ops.at_start[members] - begin[rows, at]
        others = members != last
        behind = float(done[~others][0] - np.median(done[others]))
        stood = float(np.median(case.waits.exposed_wait[members[others]]))
        if np.isfinite(behind) and min(behind, stood) > 0:
            found[row_of[int(case.ops.rank[last])]][at] += min(behind, stood)
    return found


def _instances(case: Case) -> Iterator[tuple[int, I64]]:
    """(operation of the member that came last, all its operations) of each collective within a stage, seen whole."""
    ops, waits = case.ops, case.waits
    rows = np.flatnonzero((ops.instance >= 0) & case.analysed & ~case.in_message)
    rows = rows[np.argsort(ops.instance[rows], kind="stable")]
    stage = {rank: case.mesh.coords(rank)["pp"] for rank in ops.ranks}
    for members in np.split(rows, np.flatnonzero(np.diff(ops.instance[rows])) + 1) if len(rows) else []:
        last = int(waits.last[ops.instance[members[0]]])
        inside = len({stage[int(r)] for r in ops.rank[members]}) == 1
        if inside and len(members) > 1 and last in members and waits.complete[ops.instance[last]]:
            yield last, members


def with_late_posts(case: Case, answer: Answer) -> Answer:
    """`answer`, or the open one that names who posts late, where nobody is blamed for that: it is no health."""
    blameless = answer.verdict == "healthy" or answer.cause == "data_imbalance"
    found = late_posts(case) if blameless and len(case.steps.numbers) > 1 else None
    if found is None:
        return answer
    rank = case.steps.ranks[found.row]
    candidate = suspect_of(case, found.row, 0.0, 0.0, "unknown", ())
    reason = (
        f"no rank is proven to work longer than its peers, but rank {rank} comes last to collectives in most steps, "
        f"later in its own work than the others: these stand still {ms(found.waited):.1f} ms of "
        f"{ms(case.step_ns):.1f} ms a step until it comes; what holds it up runs beside its compute, as copies from "
        "the host do, or hides in work that is dealt unevenly"
    )
    decide = (
        f"compare copies and launches of rank {rank} with a peer's (tracekit open shows both), and record a few "
        "steps with that rank on another host"
    )
    candidate = replace(candidate, lost_ms_low=0.0, lost_ms_high=ms(found.waited))
    return Answer("inconclusive", "unknown", reason, candidates=(candidate,), to_decide=decide)
