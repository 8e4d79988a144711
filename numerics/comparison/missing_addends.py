"""Missing, doubled or wrongly weighted addends of the sum that a tensor is.

The replay recorded what ought to be added: the partial of every rank, or the gradient of every micro-batch. The
difference between wrong and right sum is fitted by them; weights of -1 and +1 tell which are missing or doubled.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from numerics.columns import Frame
from numerics.comparison.first_divergence import Found
from numerics.comparison.linear_relations import Vector, addends, near, roundoff
from numerics.comparison.row_pairs import Evidence

_MOST_ADDENDS: Final = 64
_MOST_ROWS: Final = 16
_MOST_NUMBERS: Final = 1 << 15
_PLAIN: Final = {"kv": "tp", "embedding": "pp", "dp_cp": "dp", "micro-batch": "pp"}
"""Axes of the mesh that other names stand for; accumulating micro-batches is the pipeline's work."""


@dataclass(frozen=True)
class Explanation:
    """A relation in words; `axis` where it names one; `dtype` where the value was rounded to that format.

    `rounding`: the difference is of the size of roundings, and nothing more is known.
    """

    text: str
    axis: str | None = None
    dtype: str | None = None
    rounding: bool = False


def partial_words(partial: str) -> str:
    """Words for a partial's name: dp=1,cp=0 becomes dp rank 1, cp rank 0."""
    return ", ".join(
        part.replace("=", " " if part.startswith("micro-batch") else " rank ", 1)
        for part in partial.split(",")
    )


def tolerance_of(evidence: Evidence, rows: Sequence[int], *, values: bool) -> float:
    """Residual that rounding alone may leave."""
    unit = max(
        max(
            roundoff(evidence.run.name("dtype", r)),
            roundoff(evidence.replay.name("dtype", evidence.match(r))),
        )
        for r in rows
    )
    return max((4 if values else 12) * unit, 1e-9)


def missing_addends(
    evidence: Evidence, found: Found, rows: Sequence[int], sizes: Mapping[str, int]
) -> Explanation | None:
    """Missing, doubled or wrongly weighted addends of the sum that the tensor is: on all ranks alike, or on each."""
    del sizes
    rows = rows[:_MOST_ROWS]
    values = evidence.has_values(rows)
    per_row = [_candidates(evidence, found, row, values=values) for row in rows]
    common = sorted(set.intersection(*(set(options) for options in per_row))) if per_row else []
    if common:
        weights = _weights(
            evidence, rows, [np.concatenate([o[n] for o in per_row]) for n in common], values=values
        )
        if weights is not None:
            return _words(common, weights)
    answers: list[tuple[int, list[str], tuple[float, ...]]] = []
    for row, options in zip(rows, per_row, strict=True):
        names = sorted(options)
        weights = _weights(evidence, [row], [options[n] for n in names], values=values) if names else None
        if weights is None:
            return None
        answers.append((row, names, weights))
    return _each_rank(evidence, answers)


def _weights(
    evidence: Evidence, rows: Sequence[int], vectors: Sequence[Vector], *, values: bool
) -> tuple[float, ...] | None:
    a, b = evidence.both(rows, values=values)
    if len(a) > _MOST_NUMBERS:
        stride = -(-len(a) // _MOST_NUMBERS)
        a, b, vectors = a[::stride], b[::stride], [v[::stride] for v in vectors]
    with np.errstate(all="ignore"):  # rounding of the sum itself bounds what the difference can be known to
        noise = tolerance_of(evidence, rows, values=values) * float(np.linalg.norm(b))
        size = float(np.linalg.norm(a - b))
    if not math.isfinite(size) or size <= 4 * noise:
        return None
    some = [n for n, vector in enumerate(vectors) if np.any(vector)]  # what adds nothing cannot be missed
    found = addends(a - b, [vectors[n] for n in some], min(max(4 * noise / size, 4e-6), 0.2))
    if found is None:
        return None
    weights = [0.0] * len(vectors)
    for n, weight in zip(some, found, strict=True):
        weights[n] = weight
    return tuple(weights)


def _words(names: Sequence[str], weights: Sequence[float]) -> Explanation | None:
    missing = [n for n, w in zip(names, weights, strict=True) if near(w, -1, 0.03)]
    doubled = [n for n, w in zip(names, weights, strict=True) if near(w, 1, 0.03)]
    rest = [
        (n, w) for n, w in zip(names, weights, strict=True) if abs(w) > 0.03 and n not in {*missing, *doubled}
    ]
    parts = [f"missing term: the partial of {grouped(missing, names)}"] if missing else []
    parts += [f"doubled term: the partial of {grouped(doubled, names)}"] if doubled else []
    parts += [f"the partial of {partial_words(n)} counts {1 + w:.4g} times" for n, w in rest[:6]]
    touched = [n for n, w in zip(names, weights, strict=True) if abs(w) > 0.03]
    return Explanation("; ".join(parts), _axis_of(touched, names)) if parts else None


def _each_rank(
    evidence: Evidence, answers: Sequence[tuple[int, list[str], tuple[float, ...]]]
) -> Explanation | None:
    """Join what each rank lacks: often all but its own."""
    run = evidence.run
    texts, axes, own = [], set(), True
    for row, names, weights in answers:
        answer = _words(names, weights)
        if answer is None:
            return None
        texts.append(f"rank {int(run['rank'][row])}: {answer.text}")
        axes.add(answer.axis)
        for name, weight in zip(names, weights, strict=True):
            mine = all(_is_own(run, row, part) for part in name.split(","))
            own = own and (abs(weight) < 0.03 if mine else near(weight, -1, 0.03))
    axis = axes.pop() if len(axes) == 1 else None
    if own:
        over = f" over {axis}" if axis else ""
        return Explanation(
            f"not reduced{over}: each rank holds its own partial, the others' are missing", axis
        )
    return Explanation("; ".join(texts[:4]), axis)


def _is_own(run: Frame, row: int, part: str) -> bool:
    """Whether "dp=1" is the row's own coordinate; a micro-batch is everybody's."""
    axis, _, index = part.partition("=")
    return axis not in run.ints or str(int(run[axis][row])) == index


def _axis_of(touched: Sequence[str], names: Sequence[str]) -> str | None:
    """The axis along which the touched addends stand apart from the others; pp for whole micro-batches."""
    keys = [part.partition("=")[0] for part in names[0].split(",")]
    for place, key in enumerate(keys):
        marked = {n.split(",")[place] for n in touched if n.count(",") + 1 == len(keys)}
        inside = {n for n in names if n.count(",") + 1 == len(keys) and n.split(",")[place] in marked}
        if inside == set(touched) and (
            len(keys) == 1 or len(marked) < len({n.split(",")[place] for n in names})
        ):
            return _PLAIN.get(key, key if key in {"tp", "cp", "pp", "dp"} else None)
    return None


def grouped(chosen: Sequence[str], names: Sequence[str]) -> str:
    """Names in words; all micro-batches of a rank, or all ranks of a micro-batch, are named once."""
    keys = [part.partition("=")[0] for part in names[0].split(",")]
    for place in range(len(keys)):
        marked = sorted({n.split(",")[place] for n in chosen if n.count(",") + 1 == len(keys)})
        if len(keys) > 1 and {n for n in names if n.split(",")[place] in marked} == set(chosen):
            return ", of ".join(partial_words(m) for m in marked[:6])
    return ", of ".join(partial_words(n) for n in chosen[:6]) + (", …" if len(chosen) > 6 else "")


def _candidates(evidence: Evidence, found: Found, row: int, *, values: bool) -> dict[str, Vector]:
    """Addends of the right tensor that the replay recorded: partials by rank, gradients by micro-batch."""
    run, right = evidence.run, evidence.replay
    same = (right["step"] == run["step"][row]) & (right["global_shape"] == run["global_shape"][row])
    addend = (right["partial"] >= 0) | (right["micro_batch"] >= 0)
    options: dict[str, Vector] = {}
    for other in np.flatnonzero(same & addend):
        name = _addend_name(evidence, found, row, int(other))
        if name is None or name in options or len(options) >= _MOST_ADDENDS:
            continue
        if right["boxes"][other] == run["boxes"][row]:
            if values and right.values_key(int(other)) is None:
                continue
            options[name] = evidence.vector(right, int(other), values=values)
        elif values:
            part = evidence.part_of(int(other), row)
            if part is not None:
                options[name] = np.asarray(part.reshape(-1), np.float64)
    return options


def _addend_name(evidence: Evidence, found: Found, row: int, other: int) -> str | None:
    """Name of a row of the replay as an addend of the row's tensor: its partial, its micro-batch, or both."""
    run, right = evidence.run, evidence.replay
    partial = right.name("partial", other)
    same = right["tensor"][other] == run["tensor"][row]
    here, there = int(run["micro_batch"][row]), int(right["micro_batch"][other])
    if same and there >= 0 > here:
        return f"{partial},micro-batch={there}" if partial else f"micro-batch={there}"
    if partial and here == there and (same or _feeds(evidence, found, row, other)):
        return partial
    return None


def _feeds(evidence: Evidence, found: Found, row: int, other: int) -> bool:
    """Whether a row of the replay is what the blamed collective takes: its input, or the partial value before it."""
    if found.collective is None:
        return False
    right = evidence.replay
    owner: Frame = right if found.missing else evidence.run
    if right.name("kind", other) == "collective_in":
        return all(owner.name(c, found.collective) == right.name(c, other) for c in ("axis", "op", "label"))
    label = owner.name("label", found.collective)
    gradient = right.name("kind", other) == "activation_grad"
    return (
        right["kind"][other] == evidence.run["kind"][row]
        and gradient == label.endswith(".grad")
        and right.name("tensor", other).startswith(f"{label.removesuffix('.grad')}.")
    )
