"""Rules of `rules.explain` for right values in the wrong place: of another step or tensor, moved, or at few indices."""

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from numerics.comparison.explanations.explanation import Explanation, Question, agreed_axis, ranks_in_words
from numerics.comparison.explanations.missing_addends import partial_words
from numerics.comparison.joins.linear_relations import near
from numerics.comparison.joins.mesh_axes import cutting_axis
from numerics.comparison.joins.row_pairs import RowPairs
from numerics.local.array_differences import few_places, moved, places_in_words
from numerics.schema import parse_boxes
from numerics.thresholds.comparison import LEAST_REARRANGED, SAME_SQUARES, SAME_SUM

_OWN: Final = "not reduced: still"


def from_elsewhere(question: Question) -> Explanation | None:
    """Return the step or tensor, or the rank's own partial, that has the same bits in the replay's capture."""
    pairs = question.pairs
    if any(pairs.run["numel"][row] < 2 for row in question.rows):
        return None
    origins = [_origin(pairs, row) for row in question.rows]
    found = [origin for origin in origins if origin is not None]
    if not found or len(found) < len(origins):
        return None
    texts, axis = [text for text, _ in found], agreed_axis({axis for _, axis in found})
    if len(set(texts)) == 1:
        return Explanation(*found[0])
    if all(text.startswith(_OWN) for text in texts) and len({axis for _, axis in found}) == 1:
        over = "" if axis is None else f" over {axis}"
        return Explanation(
            f"not reduced{over}: each rank still holds its own partial, the others' are missing", axis
        )
    return Explanation(ranks_in_words(question, texts), axis)


def _origin(pairs: RowPairs, row: int) -> tuple[str, str | None] | None:
    """Return where the replay holds a row's bits, in words, and the axis that this names; None where nowhere."""
    run, right = pairs.run, pairs.replay
    step = int(run["step"][row])
    same = [
        r for r in pairs.by_digest.get(int(run.digest[row]), []) if right["boxes"][r] == run["boxes"][row]
    ]
    stale = [r for r in same if right["tensor"][r] == run["tensor"][row] and right["step"][r] < step]
    if stale:
        origin = int(right["step"][stale[-1]])
        return f"stale by {step - origin} step{'s' * (step - origin > 1)}: the value of step {origin}", None
    now = [r for r in same if right["step"][r] == step]
    partial = next((r for r in now if right["partial"][r] >= 0), None)
    if partial is not None:
        return _partial_origin(pairs, row, right.name("partial", partial))
    kind, tensor = run["kind"][row], run["tensor"][row]
    other = next((r for r in now if right["kind"][r] == kind and right["tensor"][r] != tensor), None)
    return None if other is None else (f"the value of {right.name('tensor', other)}", None)


def _partial_origin(pairs: RowPairs, row: int, partial: str) -> tuple[str, str | None]:
    """Return in words the rank of the partial that a row holds, and the axis over which it was not reduced."""
    run, parts = pairs.run, partial.split(",")
    axes = [part.partition("=")[0] for part in parts]
    own = all(f"{axis}={int(run[axis][row])}" in parts for axis in axes if axis in run.ints)
    axis = axes[0] if len(axes) == 1 else None
    return f"{_OWN if own else 'holds'} the partial of {partial_words(partial)}", axis


def rearranged(question: Question) -> Explanation | None:
    """The right values in another order along a dimension."""
    pairs = question.pairs
    if pairs.run.name("dtype", question.rows[0]) == "bool":
        return None  # rows of a mask are copies of one another by nature
    if not pairs.has_values(question.rows):
        return _same_statistics(pairs, question.rows)
    text: str | None = None
    for row in question.rows:
        arrays = _arrays(pairs, row)
        text = None if arrays is None else moved(*arrays)
        if text is None:
            return None
    return Explanation(f"moved: {text}")


def _arrays(pairs: RowPairs, row: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None:
    a, b = pairs.array(pairs.run, row), pairs.array(pairs.replay, pairs.match(row))
    return None if a is None or b is None or a.shape != b.shape else (a, b)


def _same_statistics(pairs: RowPairs, rows: Sequence[int]) -> Explanation | None:
    """Without the values: extremes and sums of squares equal, places not."""
    mine, right = pairs.run.reals, pairs.replay.reals
    for row in rows:
        match, count = pairs.match(row), int(pairs.run["numel"][row])
        squares = mine["sum_squares"][row]
        exact = all(mine[c][row] == right[c][match] for c in ("min", "max", "abs_max"))
        close = near(squares, right["sum_squares"][match], SAME_SQUARES)
        scale = math.sqrt(max(squares, 0) * max(count, 1))
        same_sum = abs(mine["sum"][row] - right["sum"][match]) <= SAME_SUM * scale
        if not (exact and close and same_sum) or count < LEAST_REARRANGED:
            return None
    return Explanation("moved: the same values in another order (capture with tensors to see which)")


def few_indices(question: Question) -> Explanation | None:
    """Differences at few indices of a dimension, above all at the ends of the pieces into which an axis cuts it."""
    pairs = question.pairs
    texts: list[str] = []
    axes: set[str | None] = set()
    for row in question.rows:
        arrays = _arrays(pairs, row) if pairs.has_values([row]) else None
        few = None if arrays is None else few_places(*arrays)
        if arrays is None or few is None:
            return None
        dim, at = few
        edge = _edge(pairs, row, dim, at)
        axes.add(cutting_axis(pairs.run, row, dim) if edge else None)
        texts.append(edge or places_in_words(at, arrays[0].shape[dim], dim))
    axis = agreed_axis(axes)
    if len(set(texts)) == 1:
        where = f", the boundaries of the cut over {axis}" if axis else ""
        return Explanation(f"differs {texts[0]}{where}", axis)
    return Explanation(f"differs {ranks_in_words(question, texts)}", axis)


def _edge(pairs: RowPairs, row: int, dim: int, at: Sequence[int]) -> str | None:
    """Say that only the last or the first index of each piece differs; None where others do."""
    boxes = parse_boxes(pairs.run.name("boxes", row))
    several = len({box.offsets[dim] for box in boxes}) == len(boxes)
    ends = np.cumsum([box.sizes[dim] for box in (boxes if several else boxes[:1])]).tolist()
    starts = [0, *ends[:-1]]
    if set(at) <= {end - 1 for end in ends}:
        return f"only at the last index of a piece along dimension {dim} (a boundary)"
    if set(at) <= set(starts):
        return f"only at the first index of a piece along dimension {dim} (a boundary)"
    return None
