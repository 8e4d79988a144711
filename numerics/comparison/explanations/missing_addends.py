"""A rule of `rules.explain`: missing, doubled or wrongly weighted addends of the sum that a tensor is.

The replay recorded the addends: the partial of every rank, or the gradient of every micro-batch. They are fitted to the
difference between the wrong and the right sum; a weight of -1 means a missing addend, +1 a doubled one.
"""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from numerics.columns import Columns
from numerics.comparison.explanations.explanation import Explanation, Question, agreed_axis
from numerics.comparison.joins.linear_relations import Vector, addends, near
from numerics.comparison.joins.row_pairs import RowPairs
from numerics.thresholds.comparison import (
    ADDEND_MARGIN,
    LEAST_FIT,
    LEAST_FITTED,
    LOOSEST_FIT,
    MAX_ADDENDS,
    MAX_FITTED_NUMBERS,
    MAX_FITTED_ROWS,
    WEIGHT_TOLERANCE,
)
from numerics.thresholds.report import NAMES_IN_SENTENCE, RANKS_TOLD
from tracekit.axes import AXES

_PLAIN: Final = {"kv": "tp", "embedding": "pp", "dp_cp": "dp", "micro-batch": "pp"}
"""Other names of axes of the mesh; accumulating micro-batches is the pipeline's work."""


def partial_words(partial: str) -> str:
    """Return a partial's name in words: "dp=1,cp=0" becomes "dp rank 1, cp rank 0"."""
    return ", ".join(
        part.replace("=", " " if part.startswith("micro-batch") else " rank ", 1)
        for part in partial.split(",")
    )


def missing_addends(question: Question) -> Explanation | None:
    """Return which addends of the sum are missing, doubled or wrongly weighted: on all ranks alike, or on each."""
    pairs, rows = question.pairs, question.rows[:MAX_FITTED_ROWS]
    if any(int(pairs.run["numel"][row]) < LEAST_FITTED for row in rows):
        return None
    values = pairs.has_values(rows)
    per_row = [_candidates(question, row, values=values) for row in rows]
    common = sorted(set.intersection(*(set(options) for options in per_row))) if per_row else []
    if common:
        vectors = [np.concatenate([options[name] for options in per_row]) for name in common]
        weights = _weights(pairs, rows, vectors, values=values)
        if weights is not None:
            return _words(common, weights)
    answers: list[tuple[int, list[str], tuple[float, ...]]] = []
    for row, options in zip(rows, per_row, strict=True):
        names = sorted(options)
        weights = _weights(pairs, [row], [options[n] for n in names], values=values) if names else None
        if weights is None:
            return None
        answers.append((row, names, weights))
    return _each_rank(pairs.run, answers)


def _weights(
    pairs: RowPairs, rows: Sequence[int], vectors: Sequence[Vector], *, values: bool
) -> tuple[float, ...] | None:
    """Return the weight of each addend in the difference between rows and their matches; None where nothing fits."""
    a, b = pairs.both(rows, values=values)
    if len(a) > MAX_FITTED_NUMBERS:
        stride = -(-len(a) // MAX_FITTED_NUMBERS)
        a, b, vectors = a[::stride], b[::stride], [v[::stride] for v in vectors]
    with np.errstate(all="ignore"):  # rounding of the sum itself limits how well the difference is known
        noise = pairs.tolerance(rows, values=values) * float(np.linalg.norm(b))
        size = float(np.linalg.norm(a - b))
    if not math.isfinite(size) or size <= ADDEND_MARGIN * noise:
        return None
    some = [n for n, vector in enumerate(vectors) if np.any(vector)]  # an addend of zeros cannot be missed
    residual = min(max(ADDEND_MARGIN * noise / size, LEAST_FIT), LOOSEST_FIT)
    found = addends(a - b, [vectors[n] for n in some], residual)
    if found is None:
        return None
    weights = [0.0] * len(vectors)
    for n, weight in zip(some, found, strict=True):
        weights[n] = weight
    return tuple(weights)


def _words(names: Sequence[str], weights: Sequence[float]) -> Explanation | None:
    """Say which addends are missing, doubled or weighted; None where all weights are 0."""
    weighted = list(zip(names, weights, strict=True))
    missing = [n for n, w in weighted if near(w, -1, WEIGHT_TOLERANCE)]
    doubled = [n for n, w in weighted if near(w, 1, WEIGHT_TOLERANCE)]
    touched = [n for n, w in weighted if abs(w) > WEIGHT_TOLERANCE]
    rest = [(n, w) for n, w in weighted if n in touched and n not in {*missing, *doubled}]
    parts = [f"missing term: the partial of {grouped(missing, names)}"] if missing else []
    parts += [f"doubled term: the partial of {grouped(doubled, names)}"] if doubled else []
    parts += [
        f"the partial of {partial_words(n)} counts {1 + w:.4g} times" for n, w in rest[:NAMES_IN_SENTENCE]
    ]
    return Explanation("; ".join(parts), _axis_of(touched, names)) if parts else None


def _each_rank(
    run: Columns, answers: Sequence[tuple[int, list[str], tuple[float, ...]]]
) -> Explanation | None:
    """Join what each rank lacks: often all addends but its own."""
    texts: list[str] = []
    axes: set[str | None] = set()
    own = True
    for row, names, weights in answers:
        answer = _words(names, weights)
        if answer is None:
            return None
        texts.append(f"rank {int(run['rank'][row])}: {answer.text}")
        axes.add(answer.axis)
        for name, weight in zip(names, weights, strict=True):
            mine = all(_is_own(run, row, part) for part in name.split(","))
            own = own and (abs(weight) < WEIGHT_TOLERANCE if mine else near(weight, -1, WEIGHT_TOLERANCE))
    axis = agreed_axis(axes)
    if own:
        over = f" over {axis}" if axis else ""
        return Explanation(
            f"not reduced{over}: each rank holds its own partial, the others' are missing", axis
        )
    return Explanation("; ".join(texts[:RANKS_TOLD]), axis)


def _is_own(run: Columns, row: int, part: str) -> bool:
    """Return whether "dp=1" is the row's own coordinate; every rank adds every micro-batch."""
    axis, _, index = part.partition("=")
    return axis not in run.ints or str(int(run[axis][row])) == index


def _axis_of(touched: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the axis along which the touched addends differ from the others; pp for whole micro-batches."""
    keys = [part.partition("=")[0] for part in names[0].split(",")]
    for place, key in enumerate(keys):
        marked = {n.split(",")[place] for n in touched if n.count(",") + 1 == len(keys)}
        inside = {n for n in names if n.count(",") + 1 == len(keys) and n.split(",")[place] in marked}
        if inside == set(touched) and (
            len(keys) == 1 or len(marked) < len({n.split(",")[place] for n in names})
        ):
            return _PLAIN.get(key, key if key in AXES else None)
    return None


def grouped(chosen: Sequence[str], names: Sequence[str]) -> str:
    """Return names in words; all micro-batches of a rank, or all ranks of a micro-batch, are named once."""
    keys = [part.partition("=")[0] for part in names[0].split(",")]
    for place in range(len(keys)):
        marked = sorted({n.split(",")[place] for n in chosen if n.count(",") + 1 == len(keys)})
        if len(keys) > 1 and {n for n in names if n.split(",")[place] in marked} == set(chosen):
            return ", of ".join(partial_words(m) for m in marked[:NAMES_IN_SENTENCE])
    return ", of ".join(partial_words(n) for n in chosen[:NAMES_IN_SENTENCE]) + (
        ", …" if len(chosen) > NAMES_IN_SENTENCE else ""
    )


def _candidates(question: Question, row: int, *, values: bool) -> dict[str, Vector]:
    """Return addends of the right tensor that the replay recorded: partials by rank, gradients by micro-batch."""
    pairs, run, right = question.pairs, question.pairs.run, question.pairs.replay
    same = (right["step"] == run["step"][row]) & (right["global_shape"] == run["global_shape"][row])
    addend = (right["partial"] >= 0) | (right["micro_batch"] >= 0)
    options: dict[str, Vector] = {}
    for other in np.flatnonzero(same & addend):
        name = _addend_name(question, row, int(other))
        if name is None or name in options or len(options) >= MAX_ADDENDS:
            continue
        if right["boxes"][other] == run["boxes"][row]:
            if values and right.values_key(int(other)) is None:
                continue
            options[name] = pairs.vector(right, int(other), values=values)
        elif values:
            part = pairs.part_of(int(other), row)
            if part is not None:
                options[name] = np.asarray(part.reshape(-1), np.float64)
    return options


def _addend_name(question: Question, row: int, other: int) -> str | None:
    """Return the name of a replay's row as an addend of the row's tensor: its partial, its micro-batch, or both."""
    run, right = question.pairs.run, question.pairs.replay
    partial = right.name("partial", other)
    same = right["tensor"][other] == run["tensor"][row]
    here, there = int(run["micro_batch"][row]), int(right["micro_batch"][other])
    if same and there >= 0 > here:
        return f"{partial},micro-batch={there}" if partial else f"micro-batch={there}"
    if partial and here == there and (same or _feeds(question, row, other)):
        return partial
    return None


def _feeds(question: Question, row: int, other: int) -> bool:
    """Return whether a replay's row is an input of the blamed collective, or the partial value before it."""
    found, right = question.found, question.pairs.replay
    if found.collective is None:
        return False
    owner = right if found.missing else question.pairs.run
    if right.name("kind", other) == "collective_in":
        return all(owner.name(c, found.collective) == right.name(c, other) for c in ("axis", "op", "label"))
    label = owner.name("label", found.collective)
    gradient = right.name("kind", other) == "activation_grad"
    return (
        right["kind"][other] == question.pairs.run["kind"][row]
        and gradient == label.endswith(".grad")
        and right.name("tensor", other).startswith(f"{label.removesuffix('.grad')}.")
    )
