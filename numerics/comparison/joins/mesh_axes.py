"""Axes of the mesh: their sizes, and the axis that separates differing ranks from the others."""

from collections.abc import Sequence

import numpy as np

from numerics.columns import Columns
from numerics.comparison.joins.row_table import RowTable
from numerics.comparison.joins.tensor_table import Status
from numerics.keys import Ints
from numerics.schema import parse_boxes, ranks_in
from tracekit.axes import AXES


def axis_sizes(run: Columns) -> dict[str, int]:
    """Return the number of ranks on each axis, from the coordinates recorded."""
    return {axis: int(run[axis].max()) + 1 if len(run) else 1 for axis in AXES}


def plain_axis(run: Columns, axis: str) -> str:
    """Return the mesh axis of a collective's axis: dp_cp is dp, or cp if dp is 1."""
    if axis == "kv":
        return "tp"
    if axis == "embedding":
        return "pp"
    if axis == "dp_cp":
        return "cp" if axis_sizes(run)["dp"] == 1 else "dp"
    return axis


def apart_axis(run: Columns, rows: list[int]) -> str | None:
    """Return the axis along which rows of one tensor differ in bits; None where they do along several, or none."""
    found = []
    for axis in AXES:
        held: dict[tuple[int, ...], set[int]] = {}
        for row in rows:
            others = tuple(int(run[other][row]) for other in AXES if other != axis)
            held.setdefault(others, set()).add(int(run.digest[row]))
        found += [axis] if any(len(digests) > 1 for digests in held.values()) else []
    return found[0] if len(found) == 1 else None


def group_axis(run: Columns, row: int) -> str | None:
    """Return the axis of a collective: the one that it names, or along which the ranks of its group lie.

    None where the row is no collective, its group lies along several axes, or the ranks' coordinates are unknown.
    """
    named = plain_axis(run, run.name("axis", row))
    if named in AXES:
        return named
    axes = apart_axes(run, ranks_in(run.name("group", row)))
    return axes[0] if len(axes) == 1 else None


def apart_axes(run: Columns, ranks: Sequence[int]) -> list[str]:
    """Return the axes on which these ranks have unlike coordinates."""
    here = np.isin(run["rank"], list(ranks))
    return [axis for axis in AXES if len(np.unique(run[axis][here])) > 1]


def odd_axis(run: Columns, table: RowTable, rows: Ints) -> str | None:
    """Return the axis that separates the differing ranks from the ranks that hold the same tensor correctly."""
    row = int(rows[0])
    slot = (run["step"] == run["step"][row]) & (run["phase"] == run["phase"][row]) & (table.match >= 0)
    slot &= run["kind"] == run["kind"][row]
    # over all micro-batches: in one of them a small difference may round away on some ranks
    same = np.flatnonzero(slot & (run["tensor"] == run["tensor"][row]))
    axis = _splits(run, same, same[table.status[same] == Status.DIFFERENT])
    if axis is None and run.name("phase", row) in {"init", "reduce", "step"}:
        everything = np.flatnonzero(slot)
        axis = _splits(run, everything, everything[table.status[everything] == Status.DIFFERENT])
    return axis


def axis_of_ranks(run: Columns, ranks: Sequence[int]) -> str | None:
    """Return the axis on which some coordinates hold all these ranks and no others; None without one."""
    return _splits(run, np.arange(len(run)), np.flatnonzero(np.isin(run["rank"], list(ranks))))


def _splits(run: Columns, everyone: Ints, odd: Ints) -> str | None:
    """Return the first axis on which some coordinates hold all odd ranks and none of the others."""
    for axis in AXES:
        marked = np.unique(run[axis][odd])
        everywhere = np.unique(run[axis][everyone])
        if len(marked) == len(everywhere):
            continue
        inside = everyone[np.isin(run[axis][everyone], marked)]
        if set(run["rank"][inside].tolist()) == set(run["rank"][odd].tolist()):
            return axis
    return None


def input_axis(run: Columns, row: int) -> str | None:
    """Return the one axis that cuts a row of kind input; None for other kinds, or where none or several do."""
    if run.name("kind", row) != "input":
        return None
    same = run["step"] == run["step"][row]
    for column in ("tensor", "kind", "phase"):
        same &= run[column] == run[column][row]
    rows = np.flatnonzero(same)
    axes = [a for a in AXES if _decides(run[a][rows], run["boxes"][rows])]
    return axes[0] if len(axes) == 1 else None


def cutting_axis(run: Columns, row: int, dim: int) -> str | None:
    """Return the one axis along which a tensor's dimension is cut; None where none or several do."""
    same = run["step"] == run["step"][row]
    for column in ("tensor", "kind", "phase", "micro_batch"):
        same &= run[column] == run[column][row]
    rows = np.flatnonzero(same)
    first = {
        int(b): parse_boxes(run.names.text(int(b)))[0].offsets[dim] for b in np.unique(run["boxes"][rows])
    }
    offsets = np.array([first[int(b)] for b in run["boxes"][rows]])
    axes = [a for a in AXES if _decides(run[a][rows], offsets)]
    return axes[0] if len(axes) == 1 else None


def _decides(coordinate: Ints, boxes: Ints) -> bool:
    """Return whether ranks with different coordinates hold different boxes."""
    held = [set(boxes[coordinate == c].tolist()) for c in np.unique(coordinate)]
    return len(held) > 1 and not set.intersection(*held)
