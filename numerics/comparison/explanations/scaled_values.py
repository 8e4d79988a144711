"""Rules of `rules.explain` for values that are the right ones times a factor, or plus a constant."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from numerics.comparison.explanations.explanation import Explanation, Question
from numerics.comparison.joins.linear_relations import Factor, factor, named_factor, named_logarithm
from numerics.comparison.joins.mesh_axes import axis_sizes
from numerics.comparison.joins.row_pairs import RowPairs
from numerics.keys import random_signs
from numerics.schema import SKETCH, parse_boxes, parse_shape
from numerics.thresholds.comparison import (
    CONSTANT_TOLERANCE,
    FACTOR_MARGIN,
    LEAST_FITTED,
    LEAST_SHIFTS,
    LEAST_TOKENS,
    NAMED_FACTOR_TOLERANCE,
    TOKEN_TOLERANCE,
)
from numerics.thresholds.report import RANKS_IN_SENTENCE
from tracekit.axes import AXES, DESCENT

_FACTOR_AXES: Final = ("pp", *(axis for axis in DESCENT if axis != "pp"))
"""Axes by which factors may differ, pp first: its ranks add up micro-batches."""


def one_factor(question: Question) -> Explanation | None:
    """One factor everywhere, or one for each rank.

    Any two numbers have a ratio: of few elements a factor is claimed only where the next wrong tensor has it as well.
    """
    pairs, rows = question.pairs, question.rows
    if pairs.elements(rows) < LEAST_FITTED:
        return _carried_on(question)
    values = pairs.has_values(rows)
    tolerance = pairs.tolerance(rows, values=values)
    fit = factor(*pairs.both(rows, values=values))
    apart = fit is not None and abs(fit.value - 1) > FACTOR_MARGIN * tolerance
    if apart and fit is not None and _exact(pairs, rows, fit, tolerance, values=values):
        return _factor_words(question, fit.value, max(tolerance, NAMED_FACTOR_TOLERANCE))
    each = []
    for row in rows:
        fit = factor(*pairs.both([row], values=values))
        if fit is None or not _exact(pairs, [row], fit, tolerance, values=values):
            return None
        each.append(fit.value)
    if any(int(pairs.run["numel"][r]) < LEAST_FITTED for r in rows):
        return None
    if max(abs(v - 1) for v in each) <= FACTOR_MARGIN * tolerance:
        return None
    return _by_axis(pairs, rows, each, tolerance)


def _exact(pairs: RowPairs, rows: Sequence[int], fit: Factor, tolerance: float, *, values: bool) -> bool:
    """Return whether rows are the right ones times a fitted factor: in every element within roundings of its tensor.

    Without values, in their sketches and in their least and largest elements.
    """
    if fit.residual > tolerance:
        return False
    if values:
        a, b = pairs.both(rows, values=True)
        right = fit.value * b
        size = np.sqrt(np.mean(right * right))
        return bool((np.abs(a - right) <= tolerance * (np.abs(right) + size)).all())
    return all(_same_ends(pairs, row, fit.value, tolerance) for row in rows)


def _same_ends(pairs: RowPairs, row: int, value: float, tolerance: float) -> bool:
    """Return whether a row's least and largest elements are the right ones times a factor."""
    mine, right, other = pairs.run.reals, pairs.replay.reals, pairs.match(row)
    ends = sorted((value * float(right["min"][other]), value * float(right["max"][other])))
    allowed = tolerance * max(abs(ends[0]), abs(ends[1]))
    return all(
        abs(float(mine[name][row]) - end) <= allowed for name, end in zip(("min", "max"), ends, strict=True)
    )


def _carried_on(question: Question) -> Explanation | None:
    """Return the factor fitted to the next wrong tensor of a rank, where the few elements have it too; else None."""
    pairs, first = question.pairs, question.rows[0]
    run, later = pairs.run, pairs.table.different
    for column in ("rank", "step", "micro_batch"):
        later = later[run[column][later] == run[column][first]]
    later = later[(run["order"][later] > run["order"][first]) & (run["numel"][later] >= LEAST_FITTED)]
    if not len(later):
        return None
    following = [int(later[np.argmin(run["order"][later])])]
    values = pairs.has_values([*question.rows, *following])
    tolerance = pairs.tolerance([*question.rows, *following], values=values)
    own = factor(*pairs.both(question.rows, values=values))
    its = factor(*pairs.both(following, values=values))
    if own is None or its is None or max(own.residual, its.residual) > tolerance:
        return None
    apart = abs(own.value - its.value) > FACTOR_MARGIN * tolerance * abs(its.value)
    if apart or abs(its.value - 1) <= FACTOR_MARGIN * tolerance:
        return None
    words = _factor_words(question, its.value, max(tolerance, NAMED_FACTOR_TOLERANCE))
    return replace(
        words, text=f"{words.text}, fitted to {run.name('tensor', following[0])}, which has it as well"
    )


def _factor_words(question: Question, value: float, tolerance: float) -> Explanation:
    named = named_factor(value, question.sizes, tolerance, question.likely)
    if named is None:
        return Explanation(f"factor {value:.6g}")
    words, sizes = named
    axis = sizes[0] if len(sizes) == 1 and sizes[0] in AXES else None
    return Explanation(
        f"factor {words}", axis, sizes=tuple(one for name in sizes for one in name.split(" and "))
    )


def _by_axis(pairs: RowPairs, rows: Sequence[int], each: Sequence[float], tolerance: float) -> Explanation:
    """Say on which coordinate alone the factors depend."""
    for axis in _FACTOR_AXES:
        groups: dict[int, list[float]] = {}
        for row, value in zip(rows, each, strict=True):
            groups.setdefault(int(pairs.run[axis][row]), []).append(value)
        spread = FACTOR_MARGIN * tolerance
        if len(groups) > 1 and all(max(g) - min(g) <= spread * abs(g[0]) for g in groups.values()):
            first = sorted(groups.items())[:RANKS_IN_SENTENCE]
            shown = ", ".join(f"{axis} {i}: {g[0]:.6g}" for i, g in first)
            return Explanation(f"one factor for each {axis} rank ({shown})", axis)
    return Explanation("one factor for each rank")


def plus_logarithms(question: Question) -> Explanation | None:
    """Sums of token losses that are whole multiples of a size's logarithm too large or too small."""
    pairs, run = question.pairs, question.pairs.run
    if any(run["numel"][r] != 1 for r in question.rows):
        return None
    shifts = _scalar_shifts(pairs, question.rows[0])
    if len(np.unique(shifts)) < LEAST_SHIFTS or not np.isfinite(shifts).all():
        return None
    for name, size in sorted(question.sizes.items(), key=lambda item: item[0] != question.likely):
        if size < 2:
            continue
        counts = shifts / math.log(size)
        whole = np.abs(counts - np.round(counts)) < TOKEN_TOLERANCE
        if np.all(whole) and np.all(np.abs(counts) > LEAST_TOKENS):
            sign = "+" if counts[0] > 0 else "-"
            axis = name if name in axis_sizes(run) else None
            return Explanation(f"{sign} log {size} for each token, the logarithm of the size of {name}", axis)
    return None


def _scalar_shifts(pairs: RowPairs, row: int) -> np.ndarray:
    """Return the differences, zeros apart, of all scalars that record the same tensor as a row, (rows,) float64."""
    run, match = pairs.run, pairs.table.match
    same = (run["tensor"] == run["tensor"][row]) & (run["kind"] == run["kind"][row])
    several = np.flatnonzero(same & (run["numel"] == 1) & (match >= 0))
    shifts = run.reals["sum"][several] - pairs.replay.reals["sum"][match[several]]
    return np.asarray(shifts[shifts != 0])


def plus_constant(question: Question) -> Explanation | None:
    """The same constant added to every element: a logarithm of a size, or just a number."""
    pairs, run, rows = question.pairs, question.pairs.run, question.rows
    count = sum(int(run["numel"][r]) for r in rows)
    sums, right_sums = run.reals["sum"], pairs.replay.reals["sum"]
    shift = sum(sums[r] - right_sums[pairs.match(r)] for r in rows) / max(count, 1)
    if not math.isfinite(shift) or shift == 0:
        return None
    ones = np.concatenate([_sketch_of_ones(pairs, row) for row in rows])
    difference = np.concatenate([run.sketch[r] - pairs.replay.sketch[pairs.match(r)] for r in rows])
    with np.errstate(all="ignore"):
        residual, size = float(np.linalg.norm(difference - shift * ones)), float(np.linalg.norm(difference))
    if not size or not residual / size <= CONSTANT_TOLERANCE:
        return None
    if pairs.has_values(rows) and not _shifted(pairs, rows, shift):
        return None
    named = named_logarithm(shift, question.sizes, CONSTANT_TOLERANCE, question.likely)
    if named is not None and pairs.elements(rows) > 1:
        return Explanation(f"plus a constant: {named[0]}", named[1] if named[1] in axis_sizes(run) else None)
    return None if pairs.elements(rows) < LEAST_FITTED else Explanation(f"plus a constant: {shift:.6g}")


def _shifted(pairs: RowPairs, rows: Sequence[int], shift: float) -> bool:
    """Return whether every element is the right one plus a constant, within roundings of both."""
    a, b = pairs.both(rows, values=True)
    allowed = pairs.tolerance(rows, values=True) * (np.abs(a) + np.abs(b)) + CONSTANT_TOLERANCE * abs(shift)
    return bool((np.abs(a - b - shift) <= allowed).all())


def _sketch_of_ones(pairs: RowPairs, row: int) -> np.ndarray:
    """Return the sketch of a row of ones, (SKETCH,) float64."""
    text = pairs.run.name("boxes", row)
    if not text:
        return np.ones(SKETCH)
    shape = parse_shape(pairs.run.name("global_shape", row))
    total = np.zeros(SKETCH)
    for box in parse_boxes(text):
        part = np.ones(
            SKETCH
        )  # a sign of the sketch is a product of one for each dimension, and so is their sum
        for dim, (size, offset, extent) in enumerate(zip(shape, box.offsets, box.sizes, strict=True)):
            part *= random_signs(dim, size, SKETCH)[offset : offset + extent].sum(0, dtype=np.int64)
        total += part
    return total
