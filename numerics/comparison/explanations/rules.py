"""Relates the wrong tensor to the right one, in one sentence.

The rules of `RULES` are tried in their order; the first relation that holds up to one rounding wins.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from numerics.columns import Columns
from numerics.comparison.broken import Broken
from numerics.comparison.explanations.explanation import Explanation, Question
from numerics.comparison.explanations.flipped_bits import one_flipped_bit
from numerics.comparison.explanations.misplaced_values import few_indices, from_elsewhere, rearranged
from numerics.comparison.explanations.missing_addends import missing_addends
from numerics.comparison.explanations.number_formats import rounded
from numerics.comparison.explanations.scaled_values import one_factor, plus_constant, plus_logarithms
from numerics.comparison.first_divergence import Found
from numerics.comparison.joins.mesh_axes import axis_sizes
from numerics.comparison.joins.row_pairs import RowPairs
from numerics.formats import least_roundoff
from numerics.thresholds.comparison import ROUNDING_ONLY
from tracekit.axes import AXES


def explain(pairs: RowPairs, found: Found) -> Explanation | None:
    """Return how the first divergent tensor relates to the replay's; None where no simple relation holds.

    Where the divergence itself is a collective that no rule explains, the value that names the place is tried next.
    """
    known = {**axis_sizes(pairs.run), **_run_sizes(pairs.run)}
    answer = _first_answer(Question(pairs, found, list(found.rows), known))
    if (answer is None or answer.rounding) and found.shown and found.shown != found.rows:
        answer = _first_answer(Question(pairs, found, list(found.shown), known)) or answer
    return answer or _rounding_only(pairs, found.rows)


def _run_sizes(run: Columns) -> dict[str, int]:
    """Return the numbers of the run, besides the sizes of its axes, that a wrong factor may equal."""
    micro_batches = int(run["micro_batch"].max()) + 1
    sizes = {"micro-batches": micro_batches} if micro_batches > 1 else {}
    for row in np.flatnonzero(run.named("tensor", "valid_tokens") & (run["numel"] == 1))[:1]:
        sizes["valid tokens"] = int(run.reals["sum"][row])
    data: Any = (run.capture.config or {}).get("data")
    if isinstance(data, dict):
        for field, words in (("batch_size", "the batch"), ("seq_len", "the sequence length")):
            if isinstance(data.get(field), int):
                sizes[words] = data[field]
    return sizes


def _not_finite(question: Question) -> Explanation | None:
    """Infinite values or NaN where the replay has none, or zeros where it has values."""
    run, right, match = question.pairs.run, question.pairs.replay, question.pairs.match
    bad = [r for r in question.rows if run["non_finite"][r] and not right["non_finite"][match(r)]]
    if bad:
        count = sum(int(run["non_finite"][r]) for r in bad)
        return Explanation(f"{count} elements are infinite or not a number, none ought to be")
    squares, right_squares = run.reals["sum_squares"], right.reals["sum_squares"]
    zero = all(squares[r] == 0 for r in question.rows)
    if zero and any(right_squares[match(r)] > 0 for r in question.rows):
        return Explanation("the value is missing: all elements are zero")
    return None


RULES: Final[tuple[Callable[[Question], Explanation | None], ...]] = (
    one_flipped_bit,
    _not_finite,
    from_elsewhere,  # another step's or tensor's value, or the rank's own partial
    rounded,
    plus_logarithms,
    rearranged,
    one_factor,  # everywhere, or for each rank
    missing_addends,  # or doubled ones
    plus_constant,
    few_indices,
)
"""Rules in the order in which they are tried: relations proved by equal bits come before relations from fits."""


def _first_answer(question: Question) -> Explanation | None:
    return next((answer for rule in RULES if (answer := rule(question)) is not None), None)


def _rounding_only(pairs: RowPairs, rows: Sequence[int]) -> Explanation | None:
    """Say that a difference without a relation is of the size of roundings."""
    relative = pairs.relative(rows)
    if relative <= ROUNDING_ONLY * least_roundoff(pairs.run.name("dtype", rows[0])):
        return Explanation(
            f"differs by roundings only (relative {relative:.2g}): computed with another order, constant or format "
            "than declared",
            rounding=True,
        )
    return None


def by_collective(found: Found, owner: Columns) -> Explanation | None:
    """Return that a reduction is missing or doubled, if there is an unmatched collective before the divergence.

    `owner` is the capture that holds the collective's row: the replay's where the run lacks it.
    """
    if found.collective is None or not found.unmatched:
        return None
    name = f"{owner.name('op', found.collective)} of {owner.name('label', found.collective)}"
    kind = "missing" if found.missing else "doubled"
    return Explanation(f"{kind} reduction: the {name}", found.divergence.axis)


def by_copies(run: Columns, found: Found, broken: Sequence[Broken]) -> Explanation | None:
    """Return that copies of the divergent tensor differ, which hints at a missing reduction over their axis."""
    tensor, step = run["tensor"][found.rows[0]], run["step"][found.rows[0]]
    for one in broken:
        if one.name == "copies" and run["tensor"][one.row] == tensor and run["step"][one.row] == step:
            axis = _only_axis(run, one.rows)
            summed = run.name("kind", one.row) == "param_grad"
            over = f" over {axis}" if axis else ""
            return Explanation(
                (f"missing reduction{over}: " if summed else "copies differ: ") + one.sentence, axis
            )
    return None


def _only_axis(run: Columns, rows: Sequence[int]) -> str | None:
    """Return the one axis on which the coordinates of the rows' ranks differ; None where several do."""
    axes = [axis for axis in AXES if len({int(run[axis][r]) for r in rows}) > 1]
    return axes[0] if len(axes) == 1 else None
