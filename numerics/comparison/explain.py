"""What relates the wrong tensor to the right one, as a sentence.

Tried in this order, the first that holds exactly (up to one rounding) wins: not a number; nothing at all; another
step's, layer's or rank's value; the rank's own partial; rounded to fewer bits; moved or shifted; one factor; one
factor a rank; missing or doubled addends; plus a constant; only some places.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from numerics.columns import Frame
from numerics.comparison.array_differences import few_places, moved, places_in_words
from numerics.comparison.first_divergence import Found, axis_sizes, cutting_axis
from numerics.comparison.invariants import Broken
from numerics.comparison.linear_relations import factor, named_factor, named_logarithm, near, roundoff
from numerics.comparison.missing_addends import Explanation, missing_addends, partial_words, tolerance_of
from numerics.comparison.row_pairs import Evidence
from numerics.order.order_plan import PlanDifference
from numerics.record.digest import project
from numerics.schema import parse_boxes, parse_shape


def explain(evidence: Evidence, found: Found, sizes: Mapping[str, int]) -> Explanation | None:
    """Relate the first divergent tensor to the replay's; None where no simple relation holds.

    `sizes` names numbers of the run that a factor may equal, besides the axes.
    """
    known = {**axis_sizes(evidence.run), **sizes}
    answer = _explain(evidence, found, list(found.rows), known)
    if (answer is None or answer.rounding) and found.shown and found.shown != found.rows:
        answer = _explain(evidence, found, list(found.shown), known) or answer
    return answer or _size(evidence, found.rows)


def _explain(
    evidence: Evidence, found: Found, rows: list[int], known: Mapping[str, int]
) -> Explanation | None:
    """Relate some rows of the run to their matches."""
    steps: tuple[Callable[[], Explanation | None], ...] = (
        lambda: _not_finite(evidence, rows),
        lambda: _elsewhere(evidence, rows),
        lambda: _rounded(evidence, rows),
        lambda: _per_token(evidence, rows, known, found.near_axis),
        lambda: _moved(evidence, rows),
        lambda: _factor(evidence, rows, known, found.near_axis),
        lambda: missing_addends(evidence, found, rows, known),
        lambda: _constant(evidence, rows, known, found.near_axis),
        lambda: _places(evidence, rows),
    )
    for step in steps:
        answer = step()
        if answer is not None:
            return answer
    return None


def _not_finite(evidence: Evidence, rows: Sequence[int]) -> Explanation | None:
    run, right = evidence.run, evidence.replay
    bad = [r for r in rows if run["non_finite"][r] and not right["non_finite"][evidence.match(r)]]
    if bad:
        count = sum(int(run["non_finite"][r]) for r in bad)
        return Explanation(f"{count} elements are infinite or not a number, none ought to be")
    if all(run.reals["sum_squares"][r] == 0 for r in rows) and any(
        right.reals["sum_squares"][evidence.match(r)] > 0 for r in rows
    ):
        return Explanation("the value is missing: all elements are zero")
    return None


def _elsewhere(evidence: Evidence, rows: Sequence[int]) -> Explanation | None:
    """The value of another step, tensor, or the rank's own partial: the same bits stand in the replay's capture."""
    texts: list[tuple[str, str | None]] = []
    for row in rows:
        if evidence.run["numel"][row] < 2:
            return None
        answer = _origin(evidence, row)
        if answer is None:
            return None
        texts.append(answer)
    if len(set(texts)) == 1 or len({t for t, _ in texts}) == 1:
        return Explanation(texts[0][0], texts[0][1])
    if all(text.startswith(_OWN) for text, _ in texts) and len({axis for _, axis in texts}) == 1:
        axis = texts[0][1]
        over = "" if axis is None else f" over {axis}"
        return Explanation(
            f"not reduced{over}: each rank still holds its own partial, the others' are missing", axis
        )
    shown = "; ".join(
        f"rank {int(evidence.run['rank'][r])}: {text}"
        for r, (text, _) in list(zip(rows, texts, strict=True))[:4]
    )
    axes = {axis for _, axis in texts}
    return Explanation(shown, axes.pop() if len(axes) == 1 else None)


_OWN: Final = "not reduced: still"


def _origin(evidence: Evidence, row: int) -> tuple[str, str | None] | None:
    run, right = evidence.run, evidence.replay
    same_box = [
        r for r in evidence.by_digest.get(int(run.digest[row]), []) if right["boxes"][r] == run["boxes"][row]
    ]
    step = int(run["step"][row])
    own = [r for r in same_box if right["tensor"][r] == run["tensor"][row] and right["step"][r] < step]
    if own:
        return f"stale: the value of step {int(right['step'][own[-1]])}", None
    partial = [r for r in same_box if right["step"][r] == step and right["partial"][r] >= 0]
    if partial:
        name = right.name("partial", partial[0])
        axes = [part.partition("=")[0] for part in name.split(",")]
        mine = all(f"{axis}={int(run[axis][row])}" in name.split(",") for axis in axes if axis in run.ints)
        axis = axes[0] if len(axes) == 1 else None
        return f"{_OWN if mine else 'holds'} the partial of {partial_words(name)}", axis
    other = [
        r
        for r in same_box
        if right["step"][r] == step
        and right["kind"][r] == run["kind"][row]
        and right["tensor"][r] != run["tensor"][row]
    ]
    if other:
        return f"the value of {right.name('tensor', other[0])}", None
    return None


def _rounded(evidence: Evidence, rows: Sequence[int]) -> Explanation | None:
    """Every value fits bfloat16 though the right ones need more bits, and nothing else is wrong."""
    run, right = evidence.run, evidence.replay
    for row in rows:
        match = evidence.match(row)
        declared, there = right.name("dtype", match), run.name("dtype", row)
        narrower = roundoff(there) > roundoff(declared)
        fits = bool(run.lowbits[row]) and not right.lowbits[match]
        if not narrower and not fits:
            return None
    if evidence.relative(rows) > 64 * roundoff("bfloat16"):
        return None
    there = run.name("dtype", rows[0])
    held = there if roundoff(there) > roundoff(right.name("dtype", evidence.match(rows[0]))) else "bfloat16"
    declared = right.name("dtype", evidence.match(rows[0]))
    return Explanation(f"computed in {held} where {declared} is declared", dtype=held)


def _arrays(evidence: Evidence, row: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    a, b = evidence.array(evidence.run, row), evidence.array(evidence.replay, evidence.match(row))
    return None if a is None or b is None or a.shape != b.shape else (a, b)


def _moved(evidence: Evidence, rows: Sequence[int]) -> Explanation | None:
    if evidence.run.name("dtype", rows[0]) == "bool":
        return None  # rows of a mask are copies of one another by nature
    if not evidence.has_values(rows):
        return _same_values(evidence, rows)
    for row in rows:
        pair = _arrays(evidence, row)
        text = None if pair is None else moved(*pair)
        if text is None:
            return None
    return Explanation(f"moved: {text}" if text else "moved")


def _same_values(evidence: Evidence, rows: Sequence[int]) -> Explanation | None:
    """Without the values: extremes and sums of squares equal, places not."""
    run, right = evidence.run, evidence.replay
    for row in rows:
        match = evidence.match(row)
        exact = all(run.reals[c][row] == right.reals[c][match] for c in ("min", "max", "abs_max"))
        close = all(near(run.reals[c][row], right.reals[c][match], 1e-12) for c in ("sum_squares",)) and abs(
            run.reals["sum"][row] - right.reals["sum"][match]
        ) <= 1e-9 * math.sqrt(max(run.reals["sum_squares"][row], 0) * max(int(run["numel"][row]), 1))
        if not (exact and close) or run["numel"][row] < 8:
            return None
    return Explanation("moved: the same values in another order (capture with tensors to see which)")


def _factor(
    evidence: Evidence, rows: Sequence[int], sizes: Mapping[str, int], likely: str | None
) -> Explanation | None:
    """One factor everywhere, or one a rank."""
    values = evidence.has_values(rows)
    tolerance = tolerance_of(evidence, rows, values=values)
    a, b = evidence.both(rows, values=values)
    fit = factor(a, b)
    if fit is not None and fit.residual <= tolerance and abs(fit.value - 1) > 4 * tolerance:
        return _factor_words(fit.value, sizes, max(tolerance, 1e-6), likely)
    each = []
    for row in rows:
        fit = factor(*evidence.both([row], values=values))
        if fit is None or fit.residual > tolerance:
            return None
        each.append(fit.value)
    scalars = all(int(evidence.run["numel"][r]) < 2 for r in rows)
    if (scalars and len(set(each)) < 3) or max(abs(v - 1) for v in each) <= 4 * tolerance:
        return None  # any two numbers have a ratio
    return _by_axis(evidence, rows, each, tolerance)


def _factor_words(
    value: float, sizes: Mapping[str, int], tolerance: float, likely: str | None
) -> Explanation:
    named = named_factor(value, sizes, tolerance, likely)
    if named is None:
        return Explanation(f"factor {value:.6g}")
    axis = named[1] if named[1] in {"tp", "cp", "pp", "dp"} else None
    return Explanation(f"factor {named[0]}", axis)


def _by_axis(
    evidence: Evidence, rows: Sequence[int], each: Sequence[float], tolerance: float
) -> Explanation | None:
    """Factors that depend on one coordinate alone."""
    for axis in ("pp", "dp", "cp", "tp"):
        groups: dict[int, list[float]] = {}
        for row, value in zip(rows, each, strict=True):
            groups.setdefault(int(evidence.run[axis][row]), []).append(value)
        constant = all(max(g) - min(g) <= 4 * tolerance * abs(g[0]) for g in groups.values())
        if constant and len(groups) > 1:
            shown = ", ".join(f"{axis} {i}: {g[0]:.6g}" for i, g in sorted(groups.items())[:8])
            return Explanation(f"one factor for each {axis} rank ({shown})", axis)
    return Explanation("one factor for each rank")


def _per_token(
    evidence: Evidence, rows: Sequence[int], sizes: Mapping[str, int], likely: str | None
) -> Explanation | None:
    """Sums of token losses that are whole multiples of the logarithm of a size too large or small."""
    run = evidence.run
    first = rows[0]
    if any(run["numel"][r] != 1 for r in rows):
        return None
    same = (run["tensor"] == run["tensor"][first]) & (run["kind"] == run["kind"][first])
    several = np.flatnonzero(same & (run["numel"] == 1) & (evidence.table.match >= 0))
    shifts = run.reals["sum"][several] - evidence.replay.reals["sum"][evidence.table.match[several]]
    shifts = shifts[shifts != 0]
    if len(np.unique(shifts)) < 3 or not np.isfinite(shifts).all():
        return None
    for name, size in sorted(sizes.items(), key=lambda item: item[0] != likely):
        if size < 2:
            continue
        counts = shifts / math.log(size)
        if np.all(np.abs(counts - np.round(counts)) < 0.02) and np.all(np.abs(counts) > 0.5):
            sign = "+" if counts[0] > 0 else "-"
            axis = name if name in axis_sizes(run) else None
            return Explanation(f"{sign} log {size} for each token, the logarithm of the size of {name}", axis)
    return None


def _constant(
    evidence: Evidence, rows: Sequence[int], sizes: Mapping[str, int], likely: str | None
) -> Explanation | None:
    """The same constant added to every element: a logarithm of a size, or just a number."""
    run, right = evidence.run, evidence.replay
    count = sum(int(run["numel"][r]) for r in rows)
    shift = sum(run.reals["sum"][r] - right.reals["sum"][evidence.match(r)] for r in rows) / max(count, 1)
    if not math.isfinite(shift) or shift == 0:
        return None
    ones, left = [], []
    for row in rows:
        boxes = parse_boxes(run.name("boxes", row)) if run.name("boxes", row) else ()
        shape = parse_shape(run.name("global_shape", row))
        flat = sum(
            (project(torch.ones(b.numel, dtype=torch.float64), shape, b) for b in boxes),
            torch.zeros(8).double(),
        )
        ones.append(flat.numpy() if boxes else np.ones(8))
        left.append(run.sketch[row] - right.sketch[evidence.match(row)])
    flat_ones, difference = np.concatenate(ones), np.concatenate(left)
    with np.errstate(all="ignore"):
        residual = float(np.linalg.norm(difference - shift * flat_ones)) / float(np.linalg.norm(difference))
    if not residual <= 0.01:
        return None
    named = named_logarithm(shift, sizes, 0.01, likely)
    if named is not None:
        return Explanation(f"plus a constant: {named[0]}", named[1] if named[1] in axis_sizes(run) else None)
    if count < 2:
        return None
    return Explanation(f"plus a constant: {shift:.6g}")


def _places(evidence: Evidence, rows: Sequence[int]) -> Explanation | None:
    """Differences that stand on few places only, above all at the ends of the pieces that an axis cuts."""
    texts, axes = [], set()
    for row in rows:
        pair = _arrays(evidence, row) if evidence.has_values([row]) else None
        few = None if pair is None else few_places(*pair)
        if pair is None or few is None:
            return None
        dim, at = few
        edge = _edge(evidence, row, dim, at)
        axes.add(cutting_axis(evidence.run, row, dim) if edge else None)
        texts.append(edge or places_in_words(at, pair[0].shape[dim], dim))
    axis = axes.pop() if len(axes) == 1 else None
    if len(set(texts)) == 1:
        where = f", the boundaries of the cut over {axis}" if axis else ""
        return Explanation(f"differs {texts[0]}{where}", axis)
    shown = [f"rank {int(evidence.run['rank'][r])}: {t}" for r, t in list(zip(rows, texts, strict=True))[:4]]
    return Explanation("differs " + "; ".join(shown), axis)


def _edge(evidence: Evidence, row: int, dim: int, at: Sequence[int]) -> str | None:
    """Say that only the last or the first index of each piece differs; None where others do."""
    boxes = parse_boxes(evidence.run.name("boxes", row))
    several = len({box.offsets[dim] for box in boxes}) == len(boxes)
    ends = np.cumsum([box.sizes[dim] for box in (boxes if several else boxes[:1])]).tolist()
    starts = [0, *ends[:-1]]
    if set(at) <= {end - 1 for end in ends}:
        return f"only at the last index of a piece along dimension {dim} (a boundary)"
    if set(at) <= set(starts):
        return f"only at the first index of a piece along dimension {dim} (a boundary)"
    return None


def _size(evidence: Evidence, rows: Sequence[int]) -> Explanation | None:
    """No relation: say at least whether it is of the size of roundings."""
    run = evidence.run
    relative = evidence.relative(rows)
    unit = roundoff(run.name("dtype", rows[0]))
    if relative <= 8 * unit:
        return Explanation(
            f"differs by roundings only (relative {relative:.2g}): computed with another order, constant or format "
            "than declared",
            rounding=True,
        )
    return None


def format_of_plan(plan: Sequence[PlanDifference]) -> Explanation | None:
    """Say that the run reduces in another format than declared, where that is all that its plan does differently."""
    real = [one for one in plan if not one.is_order]
    if not real or any(one.field != "dtype" for one in real):
        return None
    return Explanation(real[0].sentence, dtype=real[0].left)


def by_collective(found: Found, names: Frame) -> Explanation | None:
    """Say that a reduction is missing, or made once more, where nothing else relates the values."""
    if found.collective is None or not found.unmatched:
        return None
    what = f"{names.name('op', found.collective)} of {names.name('label', found.collective)}"
    return Explanation(
        f"{'missing' if found.missing else 'doubled'} reduction: the {what}", found.divergence.axis
    )


def by_copies(run: Frame, found: Found, broken: Sequence[Broken]) -> Explanation | None:
    """Say that copies of the divergent tensor are not equal, which hints at a missing reduction over their axis."""
    tensor = run["tensor"][found.rows[0]]
    for one in broken:
        if (
            one.name == "copies"
            and run["tensor"][one.row] == tensor
            and run["step"][one.row] == run["step"][found.rows[0]]
        ):
            axes = [a for a in ("tp", "cp", "pp", "dp") if len({int(run[a][r]) for r in one.rows}) > 1]
            axis = axes[0] if len(axes) == 1 else None
            summed = run.name("kind", one.row) == "param_grad"
            what = f"missing reduction{f' over {axis}' if axis else ''}: " if summed else "copies differ: "
            return Explanation(what + one.sentence, axis)
    return None
