"""Finds the collective to blame for a divergence, and says what is wrong with it."""

from typing import Final

import numpy as np

from numerics.columns import Columns
from numerics.comparison.joins.mesh_axes import group_axis, plain_axis
from numerics.comparison.joins.row_table import RowTable
from numerics.keys import Ints
from numerics.schema import COLLECTIVES

COPYING: Final = ("dp", "dp_cp", "kv", "embedding")
"""Axes with collectives that take gradients as they are: a wrong input there is caused by the reduction."""


def suspect(run: Columns, replay: Columns, table: RowTable, rows: Ints) -> tuple[int | None, bool]:
    """Return the row of the collective to blame (None: none), and whether the run lacks it.

    A missing collective's row is one of the replay, any other's one of the run.
    """
    row = int(rows[0])
    absent = _unmatched_before(
        replay, int(table.match[row]), table.missing, _matched_in_replay(replay, table)
    )
    if absent is not None:
        return absent, True
    extra = _unmatched_before(run, row, table.extra, table.match >= 0)
    if extra is not None:
        return extra, False
    if run.name("kind", row) == "collective_out":
        return row, False
    if run.name("kind", row) == "collective_in" and _copies_gradients(run, row):
        return row, False
    return None, False


def _copies_gradients(run: Columns, row: int) -> bool:
    label = run.name("label", row)
    return (run.name("axis", row) in COPYING or "partial_gradients" in label) and "norm" not in label


def _matched_in_replay(replay: Columns, table: RowTable) -> np.ndarray:
    matched = np.zeros(len(replay), bool)
    matched[table.match[table.match >= 0]] = True
    return matched


def _unmatched_before(side: Columns, row: int, unmatched: Ints, matched: np.ndarray) -> int | None:
    """Return the nearest unmatched collective between `row` and the last matched value before it on the same rank.

    `side` is the run or its replay, `matched` marks its rows that the other has as well, (rows,) bool. A collective
    with the row's tensor in its label goes before nearer ones.
    """
    here = side["rank"] == side["rank"][row]
    earlier = here & (side["order"] < side["order"][row])
    mine = unmatched[earlier[unmatched]]
    if not len(mine):
        return None
    values = ~side.named("kind", *COLLECTIVES)
    if side.name("kind", row) == "param_grad":  # all of them are recorded after all reductions, in any order
        values &= ~(side.named("kind", "param_grad") & (side["step"] == side["step"][row]))
    before = np.flatnonzero(values & matched & earlier)
    since = side["order"][before].max() if len(before) else -1
    near = mine[side["order"][mine] > since]
    about = mine[[concerns(side, int(m), row) for m in mine]]
    both = np.intersect1d(near, about)
    chosen = next((rows for rows in (both, near, about) if len(rows)), None)
    return None if chosen is None else int(chosen[np.argmax(side["order"][chosen])])


def concerns(side: Columns, collective: int, row: int) -> bool:
    """Return whether a collective's label names the tensor of a row, or gradients in general."""
    if int(side["step"][collective]) != int(side["step"][row]):
        return False
    label, tensor = side.name("label", collective).removesuffix(".grad"), side.name("tensor", row)
    gradient = side.name("kind", row) in {"param_grad", "param_grad_local"}
    sums = "partial_gradients" in label or side.name("axis", collective) == "embedding"
    return (bool(label) and tensor.startswith(label)) or (gradient and sums)


def axis_before(run: Columns, row: int) -> str | None:
    """Return the axis of the last collective that the row's rank made before it in the same step."""
    before = np.flatnonzero(
        (run["rank"] == run["rank"][row])
        & (run["step"] == run["step"][row])
        & (run["order"] < run["order"][row])
        & (run["axis"] >= 0)
    )
    if not len(before):
        return None
    return group_axis(run, int(before[np.argmax(run["order"][before])]))


def reduced_axis(run: Columns, row: int) -> str | None:
    """Return the axis of the last reduction of a row of kind param_grad; None for other kinds."""
    if run.name("kind", row) != "param_grad":
        return None
    before = np.flatnonzero(
        (run["rank"] == run["rank"][row])
        & (run["step"] == run["step"][row])
        & (run["order"] < run["order"][row])
        & run.named("kind", "collective_out")
        & run.named("phase", "reduce", "backward")
        & run.named("axis", *COPYING)
    )
    near = [
        int(r) for r in before if concerns(run, int(r), row) or run.name("label", int(r)).startswith("stage")
    ]
    return plain_axis(run, run.name("axis", near[-1])) if near else None


def collective_name(side: Columns, row: int) -> str:
    """Return a collective as axis/operation#label."""
    return f"{side.name('axis', row)}/{side.name('op', row)}#{side.name('label', row)}"


def what_was_seen(run: Columns, replay: Columns, row: int, blamed: int | None, *, missing: bool) -> str:
    """Return in words what was seen at the divergent `row` and at the blamed collective."""
    if blamed is None:
        return "everything computed before it is equal in bits, its own value is not"
    owner = replay if missing else run
    name = f"{owner.name('op', blamed)} of {owner.name('label', blamed)} over {owner.name('axis', blamed)}"
    if missing and _made_otherwise(run, replay, row, blamed):
        return f"the {name} does not hold what the configuration asks for: its buffer has another size"
    if missing:
        return f"the {name} that the configuration asks for is missing: the run never makes it"
    if run.name("axis", row) and blamed == row:
        if run.name("kind", row) == "collective_out":
            return f"what went into the {name} is equal in bits, what came out is not"
        return f"the gradients are equal in bits, what was put into the {name} is not"
    return f"the run makes one {name} more than its configuration asks for"


def _made_otherwise(run: Columns, replay: Columns, row: int, blamed: int) -> bool:
    """Return whether the rank makes the missing collective after all, with a buffer of another size."""
    same = (run["rank"] == run["rank"][row]) & (run["step"] == run["step"][row])
    for column in ("axis", "op", "label", "kind", "micro_batch"):
        same &= run[column] == replay[column][blamed]
    here = np.flatnonzero(same)
    return bool(len(here)) and not np.isin(run["global_shape"][here], [replay["global_shape"][blamed]]).all()
