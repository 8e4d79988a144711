"""Missing, doubled or wrongly weighted addends of the sum that a tensor is.

The replay recorded what ought to be added: the partial of every rank, or the gradient of every micro-batch. The
difference between wrong and right sum is fitted by them; weights of -1 and +1 tell which are missing or doubled.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from numerics.evidence import Evidence
from numerics.first_diff import Found
from numerics.frame import Frame
from numerics.relations import addends, near, roundoff

_MOST_ADDENDS: Final = 64


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
    return ", ".join(part.replace("=", " rank ", 1) for part in partial.split(","))


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
    """Missing, doubled or wrongly weighted addends of the sum that the tensor is."""
    values = evidence.has_values(rows)
    a, b = evidence.both(rows, values=values)
    names, vectors = _candidates(evidence, found, rows, values=values)
    if not names or not len(b):
        return None
    # rounding of the sum itself bounds what the difference can be known to
    with np.errstate(all="ignore"):
        noise = tolerance_of(evidence, rows, values=values) * float(np.linalg.norm(b))
        size = float(np.linalg.norm(a - b))
    if not math.isfinite(size) or size <= 4 * noise:
        return None
    weights = addends(a - b, vectors, min(max(4 * noise / size, 1e-6), 0.2))
    if weights is None:
        return None
    return _addend_words(names, weights, sizes)


def _addend_words(
    names: Sequence[str], weights: Sequence[float], sizes: Mapping[str, int]
) -> Explanation | None:
    missing = [n for n, w in zip(names, weights, strict=True) if near(w, -1, 0.03)]
    doubled = [n for n, w in zip(names, weights, strict=True) if near(w, 1, 0.03)]
    rest = [
        (n, w) for n, w in zip(names, weights, strict=True) if abs(w) > 0.03 and n not in {*missing, *doubled}
    ]
    axes = {n.partition("=")[0] for n, w in zip(names, weights, strict=True) if abs(w) > 0.03}
    axis = axes.pop() if len(axes) == 1 else None
    known = (
        axis
        if axis in {"tp", "cp", "pp", "dp"}
        else "pp"
        if axis == "micro-batch" and sizes.get("pp", 1) > 1
        else None
    )
    parts = (
        [f"missing term: the partial of {', of '.join(map(partial_words, missing[:6]))}"] if missing else []
    )
    parts += (
        [f"doubled term: the partial of {', of '.join(map(partial_words, doubled[:6]))}"] if doubled else []
    )
    parts += [f"the partial of {partial_words(n)} counts {1 + w:.4g} times" for n, w in rest[:6]]
    return Explanation("; ".join(parts), known) if parts else None


def _candidates(
    evidence: Evidence, found: Found, rows: Sequence[int], *, values: bool
) -> tuple[list[str], list[np.ndarray[Any, Any]]]:
    """Addends of the right tensor that the replay recorded: partials by rank, gradients by micro-batch."""
    right = evidence.replay
    per_row: list[dict[str, np.ndarray[Any, Any]]] = []
    for row in rows:
        options: dict[str, np.ndarray[Any, Any]] = {}
        for other in evidence.rows_like(row):
            name = _addend_name(evidence, found, row, int(other))
            if name is None or (values and right.values_key(int(other)) is None):
                continue
            options.setdefault(name, evidence.vector(right, int(other), values=values))
        per_row.append(options)
    common = [n for n in per_row[0] if all(n in options for options in per_row)] if per_row else []
    common = sorted(common)[:_MOST_ADDENDS]
    return common, [np.concatenate([options[n] for options in per_row]) for n in common]


def _addend_name(evidence: Evidence, found: Found, row: int, other: int) -> str | None:
    """Name of a row of the replay as an addend of the row's tensor: its partial, or its micro-batch."""
    run, right = evidence.run, evidence.replay
    partial = right.name("partial", other)
    same = right["tensor"][other] == run["tensor"][row]
    if partial and (same or _feeds(evidence, found, row, other)):
        if right["micro_batch"][other] != run["micro_batch"][row]:
            return None
        return partial
    if same and right["micro_batch"][other] >= 0 > run["micro_batch"][row]:
        return f"micro-batch={int(right['micro_batch'][other])}"
    return None


def _feeds(evidence: Evidence, found: Found, row: int, other: int) -> bool:
    """Whether a row of the replay went into the blamed collective."""
    if found.collective is None or evidence.replay.name("kind", other) != "collective_in":
        return False
    owner: Frame = evidence.replay if found.missing else evidence.run
    del row
    return all(
        owner.name(c, found.collective) == evidence.replay.name(c, other) for c in ("axis", "op", "label")
    )
