"""The first divergence: where a run and its matched replay part, in the order in which data flow.

Everything before it is equal in bits, so what stands there was computed from right inputs to a wrong output: the
operation between is the culprit. A collective is blamed where what went in was equal and what came out was not, and
where one that ought to stand before the divergence is missing or stands there twice.
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from numerics.columns import Frame, Ints
from numerics.comparison.dataflow import slots, topological
from numerics.comparison.row_table import RowTable
from numerics.comparison.tensor_table import Status
from numerics.findings import Divergence
from numerics.schema import AXES, parse_boxes

COPYING: Final = ("dp", "dp_cp", "kv", "embedding")
"""Axes whose collectives take gradients as they are: a wrong input there is the reduction's own doing."""


@dataclass(frozen=True)
class Found:
    """The first divergence and what explains it: rows of the run (`rows`, all ranks of the divergent tensor).

    `collective` is the row of the suspected collective, of the replay where `missing`, else of the run; None
    without. `unmatched`: only one of the two made it. `near_axis`: the axis of the last collective before.
    `shown` are the rows of the value that names the place, where the divergence itself is a collective.
    """

    divergence: Divergence
    rows: tuple[int, ...]
    collective: int | None = None
    missing: bool = False
    near_axis: str | None = None
    unmatched: bool = False
    shown: tuple[int, ...] = ()


def first_divergence(run: Frame, replay: Frame, table: RowTable) -> Found | None:
    """Find the first divergence; None where no row differs (rows that are only reported apart)."""
    different = table.different
    different = different[~run.named("kind", "metric")[different]]
    if not len(different):
        return None
    rows = np.array(first_of(run, different), np.int64)
    blamed, missing = _suspect(run, replay, table, rows)
    divergence = _divergence(run, replay, table, rows, blamed, missing=missing)
    near = divergence.axis or _axis_before(run, int(rows[0]))
    unmatched = missing or (blamed is not None and bool(np.isin(blamed, table.extra)))
    shown = _same_value(run, table, _value_row(run, table, int(rows[0])))
    return Found(divergence, tuple(int(r) for r in rows), blamed, missing, near, unmatched, shown)


def _axis_before(run: Frame, row: int) -> str | None:
    """Axis of the last collective that the row's rank made before it in the same step."""
    before = np.flatnonzero(
        (run["rank"] == run["rank"][row])
        & (run["step"] == run["step"][row])
        & (run["order"] < run["order"][row])
        & (run["axis"] >= 0)
    )
    if not len(before):
        return None
    return plain_axis(run, run.name("axis", int(before[np.argmax(run["order"][before])])))


def first_of(run: Frame, rows: Ints) -> tuple[int, ...]:
    """Rows of the tensor that comes first in the order in which data flow, out of some rows of a run."""
    if not len(rows):
        return ()
    slot = slots(run)
    at = slot[rows].min()
    here = np.flatnonzero(slot == at)
    place = topological(run, here)
    wrong = np.isin(here, rows)
    return tuple(int(r) for r in here[wrong & (place == place[wrong].min())])


def at_row(run: Frame, rows: tuple[int, ...], evidence: str) -> Divergence:
    """Place that rows of one tensor name, without a replay to compare with."""
    row = rows[0]
    micro_batch = int(run["micro_batch"][row])
    axis = run.name("axis", row)
    return Divergence(
        step=int(run["step"][row]),
        phase=run.name("phase", row),
        micro_batch=micro_batch if micro_batch >= 0 else None,
        module=run.name("module", row),
        tensor=run.name("tensor", row),
        collective=_collective_name(run, row) if axis else None,
        axis=plain_axis(run, axis) if axis else None,
        ranks=tuple(sorted({int(run["rank"][r]) for r in rows})),
        evidence=evidence,
    )


def _suspect(run: Frame, replay: Frame, table: RowTable, rows: Ints) -> tuple[int | None, bool]:
    """Collective to blame, as a row of the run, or of the replay where it is missing in the run."""
    row = int(rows[0])
    absent = _unmatched_before(replay, int(table.match[row]), table.missing, table, replayed=True)
    if absent is not None:
        return absent, True
    extra = _unmatched_before(run, row, table.extra, table, replayed=False)
    if extra is not None:
        return extra, False
    if run.name("kind", row) == "collective_out":
        return row, False
    if run.name("kind", row) == "collective_in" and _copies_gradients(run, row):
        return row, False
    return None, False


def _copies_gradients(run: Frame, row: int) -> bool:
    label = run.name("label", row)
    return (run.name("axis", row) in COPYING or "partial_gradients" in label) and "norm" not in label


def _unmatched_before(
    frame: Frame, row: int, unmatched: Ints, table: RowTable, *, replayed: bool
) -> int | None:
    """Nearest unmatched collective between `row` and the last matched value before it on the same rank."""
    mine = unmatched[
        (frame["rank"][unmatched] == frame["rank"][row]) & (frame["order"][unmatched] < frame["order"][row])
    ]
    if not len(mine):
        return None
    values = ~frame.named("kind", "collective_in", "collective_out")
    if frame.name("kind", row) == "param_grad":  # all of them are noted after all reductions, in any order
        values &= ~(frame.named("kind", "param_grad") & (frame["step"] == frame["step"][row]))
    if replayed:
        matched = np.zeros(len(frame), bool)
        matched[table.match[table.match >= 0]] = True
    else:
        matched = table.match >= 0
    before = np.flatnonzero(
        values & matched & (frame["rank"] == frame["rank"][row]) & (frame["order"] < frame["order"][row])
    )
    since = frame["order"][before].max() if len(before) else -1
    near = mine[frame["order"][mine] > since]
    about = mine[[_concerns(frame, int(m), row) for m in mine]]
    near = np.intersect1d(near, about) if len(np.intersect1d(near, about)) else near if len(near) else about
    return int(near[np.argmax(frame["order"][near])]) if len(near) else None


def _concerns(frame: Frame, collective: int, row: int) -> bool:
    """Whether a collective's label names the tensor of a row, or gradients in general."""
    if int(frame["step"][collective]) != int(frame["step"][row]):
        return False
    label, tensor = frame.name("label", collective).removesuffix(".grad"), frame.name("tensor", row)
    gradient = frame.name("kind", row) in {"param_grad", "param_grad_local"}
    sums = "partial_gradients" in label or frame.name("axis", collective) == "embedding"
    return (bool(label) and tensor.startswith(label)) or (gradient and sums)


def _divergence(
    run: Frame, replay: Frame, table: RowTable, rows: Ints, blamed: int | None, *, missing: bool
) -> Divergence:
    row = int(rows[0])
    shown = _value_row(run, table, row)
    micro_batch = int(run["micro_batch"][row])
    axis, collective = None, None
    if blamed is not None:
        owner = replay if missing else run
        axis = plain_axis(run, owner.name("axis", blamed))
        collective = _collective_name(owner, blamed)
    elif run.name("axis", row):
        collective = _collective_name(run, row)
    return Divergence(
        step=int(run["step"][row]),
        phase=run.name("phase", row),
        micro_batch=micro_batch if micro_batch >= 0 else None,
        module=run.name("module", shown),
        tensor=run.name("tensor", shown),
        collective=collective,
        axis=axis or odd_axis(run, table, rows) or _cut_axis(run, row) or _reduced_axis(run, row),
        ranks=tuple(sorted({int(r) for r in run["rank"][rows]})),
        evidence=_evidence(run, replay, row, blamed, missing=missing),
    )


def _value_row(run: Frame, table: RowTable, row: int) -> int:
    """Row whose tensor names the place: of a collective, the next value that differs on that rank in this step."""
    if not run.name("axis", row):
        return row
    after = table.different
    after = after[
        (run["rank"][after] == run["rank"][row])
        & (run["order"][after] >= run["order"][row])
        & (run["step"][after] == run["step"][row])
        & ~run.named("kind", "collective_in", "collective_out")[after]
    ]
    if not len(after):
        return row
    about = after[[_concerns(run, row, int(other)) for other in after]]
    after = about if len(about) else after
    return int(after[np.argmin(run["order"][after])])


def _same_value(run: Frame, table: RowTable, row: int) -> tuple[int, ...]:
    """Rows of all ranks that differ and record the same value as a row: one tensor of one step and micro-batch."""
    same = table.status == Status.DIFFERENT
    for column in ("step", "phase", "kind", "tensor", "micro_batch", "axis", "op", "label"):
        same &= run[column] == run[column][row]
    return tuple(int(r) for r in np.flatnonzero(same))


def plain_axis(run: Frame, axis: str) -> str:
    """Axis of the mesh that a collective's axis stands for: dp_cp is dp, but for a dp of 1."""
    if axis == "kv":
        return "tp"
    if axis == "embedding":
        return "pp"
    if axis == "dp_cp":
        return "cp" if axis_sizes(run)["dp"] == 1 else "dp"
    return axis


def axis_sizes(run: Frame) -> dict[str, int]:
    """Ranks on each axis, from the coordinates recorded."""
    return {axis: int(run[axis].max()) + 1 if len(run) else 1 for axis in AXES}


def _collective_name(frame: Frame, row: int) -> str:
    return f"{frame.name('axis', row)}/{frame.name('op', row)}#{frame.name('label', row)}"


def odd_axis(run: Frame, table: RowTable, rows: Ints) -> str | None:
    """Axis along which the ranks that differ stand apart from those that hold the same tensor and do not."""
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


def _cut_axis(run: Frame, row: int) -> str | None:
    """Of what a rank computes on: the one axis that cuts it, where all ranks are wrong."""
    if run.name("kind", row) != "input":
        return None
    same = run["step"] == run["step"][row]
    for column in ("tensor", "kind", "phase"):
        same &= run[column] == run[column][row]
    rows = np.flatnonzero(same)
    axes = [a for a in AXES if _decides(run[a][rows], run["boxes"][rows])]
    return axes[0] if len(axes) == 1 else None


def cutting_axis(run: Frame, row: int, dim: int) -> str | None:
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
    """Whether ranks with different coordinates hold different boxes."""
    held = [set(boxes[coordinate == c].tolist()) for c in np.unique(coordinate)]
    return len(held) > 1 and not set.intersection(*held)


def _reduced_axis(run: Frame, row: int) -> str | None:
    """Of a reduced gradient that is wrong though nothing before it is: the axis of its last reduction."""
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
        int(r) for r in before if _concerns(run, int(r), row) or run.name("label", int(r)).startswith("stage")
    ]
    return plain_axis(run, run.name("axis", near[-1])) if near else None


def _splits(run: Frame, everyone: Ints, odd: Ints) -> str | None:
    for axis in AXES:
        marked = np.unique(run[axis][odd])
        everywhere = np.unique(run[axis][everyone])
        if len(marked) == len(everywhere):
            continue
        inside = everyone[np.isin(run[axis][everyone], marked)]
        if set(run["rank"][inside].tolist()) == set(run["rank"][odd].tolist()):
            return axis
    return None


def _evidence(run: Frame, replay: Frame, row: int, blamed: int | None, *, missing: bool) -> str:
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


def _made_otherwise(run: Frame, replay: Frame, row: int, blamed: int) -> bool:
    """Whether the rank makes the missing collective all the same, with a buffer of another size."""
    same = (run["rank"] == run["rank"][row]) & (run["step"] == run["step"][row])
    for column in ("axis", "op", "label", "kind", "micro_batch"):
        same &= run[column] == replay[column][blamed]
    here = np.flatnonzero(same)
    return bool(len(here)) and not np.isin(run["global_shape"][here], [replay["global_shape"][blamed]]).all()
