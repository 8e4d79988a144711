"""Waits in unmatched operations that are longer on one rank than on its peers: a slow link, or a late rank.

Ranks of one stage do the same work, so each kind of operation should delay all of them equally. An unmatched operation
has no price, but where it delays no rank more than its peers, it hides no single slow rank or link.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.excess import without_longest
from tracekit.analysis.slowrank.gaps.evidence_gaps import whole
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.step_graph.statistics import median_of_others
from tracekit.units import F64, Mask


@dataclass(frozen=True)
class Lopsided:
    """The rank (row of Steps) that waits longest beyond its peers in one kind of operation, ns a step."""

    row: int
    kind: str
    over: float


def lopsided(case: Case) -> Lopsided | None:
    """The rank that waits longest beyond its peers in a kind of operation that was not matched everywhere.

    A rank without peers counts with its whole wait; of several steps the longest is left out. None where everything
    was matched, or no rank waits longer than its peers.
    """
    ops = case.ops
    seen = whole(case)
    names, code = ops.kinds
    names = ["message" if name in (*MESSAGES, *_MAY_BE_MESSAGES) else name for name in names]
    kinds = np.array(names, object)[code]
    worst: Lopsided | None = None
    for kind in sorted(set(kinds[case.analysed & ~seen].tolist())):
        over = _lasting(_beyond_peers(case, case.analysed & (kinds == kind), ~seen))
        row = int(np.argmax(over))
        if over[row] > 0 and (worst is None or over[row] > worst.over):
            worst = Lopsided(row, kind, float(over[row]))
    return worst


def _lasting(over: F64) -> F64:
    """The mean of each row of `over` (rows × steps, ns) without its longest step, which may be an accident."""
    return over[:, 0] if over.shape[1] == 1 else without_longest(over)


def _beyond_peers(case: Case, kind: Mask, open_: Mask) -> F64:
    """The wait of ranks in operations of a `kind` beyond their peers, rows × steps, ns; `open_`: not matched.

    Compares only unmatched operations where all peers have equally many of the kind, and otherwise all of the kind:
    kernels that lost their arguments leave different operations unmatched on each rank.
    """
    count = _by_step(case, kind & open_, np.ones(len(kind)))
    some, every = (_by_step(case, rows, case.ops.exposed) for rows in (kind & open_, kind))
    over = np.where(np.isfinite(median_of_others(every, case.stages)), 0.0, some)
    for group in (g for g in case.stages if len(g) > 1):
        spent = some if len(np.unique(count[group], axis=0)) == 1 else every
        over[group] = (spent - median_of_others(spent, case.stages))[group]
    return over


def _by_step(case: Case, rows: Mask, value: npt.ArrayLike) -> F64:
    """The sum of `value` (by operation) over the chosen `rows` of each rank and step, as `Steps` has them."""
    steps, ops = case.steps, case.ops
    row = {rank: i for i, rank in enumerate(steps.ranks)}
    column = {number: i for i, number in enumerate(steps.numbers)}
    found = np.zeros(steps.own.shape)
    place = [row[rank] for rank in ops.rank[rows].tolist()]
    at = [column[step] if steps.labelled else 0 for step in ops.step[rows].tolist()]
    np.add.at(found, (np.array(place, np.int64), np.array(at, np.int64)), np.asarray(value, np.float64)[rows])
    return found


_MAY_BE_MESSAGES = ("send_recv", "other")
