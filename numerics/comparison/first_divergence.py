"""Finds the first divergence: where a run and its matched replay part, in the order in which data flow.

Everything before it is equal in bits, so the divergent tensor was computed from right inputs to a wrong output: the
operation between them is the culprit. A collective is blamed if its input is equal and its output is not, and if a
collective that should come before the divergence is missing or doubled.
"""

from dataclasses import dataclass

import numpy as np

from numerics.columns import Columns
from numerics.comparison.joins.dataflow import slots, topological
from numerics.comparison.joins.mesh_axes import group_axis, input_axis, odd_axis
from numerics.comparison.joins.row_table import RowTable
from numerics.comparison.joins.tensor_table import Status
from numerics.comparison.suspects import (
    axis_before,
    collective_name,
    concerns,
    reduced_axis,
    suspect,
    what_was_seen,
)
from numerics.findings import Divergence
from numerics.keys import Ints
from numerics.schema import COLLECTIVES


@dataclass(frozen=True)
class Found:
    """The first divergence: `rows` are the run's rows of the divergent tensor, on all ranks that differ.

    `collective` is the row of the blamed collective, of the replay where `missing`, else of the run; None without
    one. `unmatched` says that only one of the two made it. `near_axis` is the axis of the last collective before.
    `shown` are the rows of the value that names the place, where the divergence itself is a collective.
    """

    divergence: Divergence
    rows: tuple[int, ...]
    collective: int | None = None
    missing: bool = False
    near_axis: str | None = None
    unmatched: bool = False
    shown: tuple[int, ...] = ()


def first_divergence(run: Columns, replay: Columns, table: RowTable) -> Found | None:
    """Return the first divergence; None if only rows differ that are merely reported."""
    different = table.different
    different = different[~run.named("kind", "metric")[different]]
    if not len(different):
        return None
    rows = np.array(first_of(run, different), np.int64)
    blamed, missing = suspect(run, replay, table, rows)
    divergence = _divergence(run, replay, table, rows, blamed, missing=missing)
    near = divergence.axis or axis_before(run, int(rows[0]))
    unmatched = missing or (blamed is not None and bool(np.isin(blamed, table.extra)))
    shown = _same_value(run, table, _value_row(run, table, int(rows[0])))
    return Found(divergence, tuple(int(r) for r in rows), blamed, missing, near, unmatched, shown)


def first_of(run: Columns, rows: Ints) -> tuple[int, ...]:
    """Return those of some rows that record the tensor which comes first in the order in which data flow."""
    if not len(rows):
        return ()
    slot = slots(run)
    at = slot[rows].min()
    here = np.flatnonzero(slot == at)
    place = topological(run, here)
    wrong = np.isin(here, rows)
    return tuple(int(r) for r in here[wrong & (place == place[wrong].min())])


def at_row(run: Columns, rows: tuple[int, ...], evidence: str) -> Divergence:
    """Return the place of rows of one tensor, without a replay to compare with."""
    row = rows[0]
    micro_batch = int(run["micro_batch"][row])
    axis = run.name("axis", row)
    return Divergence(
        step=int(run["step"][row]),
        phase=_phase(run, row, row),
        micro_batch=micro_batch if micro_batch >= 0 else None,
        module=run.name("module", row),
        tensor=run.name("tensor", row),
        collective=collective_name(run, row) if axis else None,
        axis=group_axis(run, row) if axis else None,
        ranks=tuple(sorted({int(run["rank"][r]) for r in rows})),
        evidence=evidence,
    )


def _divergence(
    run: Columns, replay: Columns, table: RowTable, rows: Ints, blamed: int | None, *, missing: bool
) -> Divergence:
    """Return the place of the divergent rows; `blamed` is the collective to name, of the replay where `missing`."""
    row = int(rows[0])
    shown = _value_row(run, table, row)
    micro_batch = int(run["micro_batch"][row])
    axis, collective = None, None
    if blamed is not None:
        owner = replay if missing else run
        axis = group_axis(owner, blamed)
        collective = collective_name(owner, blamed)
    elif run.name("axis", row):
        collective = collective_name(run, row)
    return Divergence(
        step=int(run["step"][row]),
        phase=_phase(run, row, shown),
        micro_batch=micro_batch if micro_batch >= 0 else None,
        module=run.name("module", shown),
        tensor=run.name("tensor", shown),
        collective=collective,
        axis=axis
        or odd_axis(run, table, rows)
        or input_axis(run, row)
        or reduced_axis(run, row)
        or (group_axis(run, row) if collective else None),
        ranks=tuple(sorted({int(r) for r in run["rank"][rows]})),
        evidence=what_was_seen(run, replay, row, blamed, missing=missing),
    )


def _phase(run: Columns, row: int, shown: int) -> str:
    """Return the phase of the divergent row; where the tensor shown for it is a gradient, that is never forward."""
    phase = run.name("phase", row)
    if phase != "forward" or not run.name("tensor", shown).endswith(".grad"):
        return phase
    later = run.name("phase", shown)
    return "backward" if later == "forward" else later


def _value_row(run: Columns, table: RowTable, row: int) -> int:
    """Return the row that names the place: for a collective, the next value that differs.

    It is one of that rank, unless only the norm differs there: what a rank passes on shows on another one.
    """
    if not run.name("axis", row):
        return row
    after = table.different
    after = after[(run["step"][after] == run["step"][row]) & ~run.named("kind", *COLLECTIVES)[after]]
    here = after[(run["rank"][after] == run["rank"][row]) & (run["order"][after] >= run["order"][row])]
    if not len(here):
        return row
    values = ~run.named("kind", "scalar", "metric")
    if not values[here].any() and values[after].any():
        return first_of(run, after[values[after]])[0]
    about = here[[concerns(run, row, int(other)) for other in here]]
    here = about if len(about) else here
    return int(here[np.argmin(run["order"][here])])


def _same_value(run: Columns, table: RowTable, row: int) -> tuple[int, ...]:
    """Return the differing rows of all ranks that record the same value: one tensor of one step and micro-batch."""
    same = table.status == Status.DIFFERENT
    for column in ("step", "phase", "kind", "tensor", "micro_batch", "axis", "op", "label"):
        same &= run[column] == run[column][row]
    return tuple(int(r) for r in np.flatnonzero(same))
