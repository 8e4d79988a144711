"""Gradients that one run sums in BF16 and the other in a wider format, by the numbers that step the weights."""

import numpy as np

from numerics.columns import Columns
from numerics.comparison.verdict import Case
from numerics.thresholds.report import NAMES_IN_SENTENCE


def other_sums(case: Case) -> str | None:
    """Return a sentence where weights narrower than FP32 are stepped by sums in BF16 in one run alone; None otherwise.

    A gradient in a wider format with numbers that BF16 all holds was summed in it; one whole sum of FP32 numbers, which
    are no multiples of one factor, is not so by chance. One that was scaled behind its sum shows nothing.
    """
    if case.baseline is None:
        return None
    mine, other = _narrow(case.run), _narrow(case.baseline)
    common = mine.keys() & other.keys()
    apart = sorted(name for name in common if mine[name] != other[name])
    if not apart or len({mine[name] for name in apart}) > 1:
        return None
    names = ", ".join(apart[:NAMES_IN_SENTENCE]) + (", …" if len(apart) > NAMES_IN_SENTENCE else "")
    here, there = ("the run", "the baseline") if mine[apart[0]] else ("the baseline", "the run")
    return (
        f"{here} sums the gradients of {len(apart)} of {len(common)} weights in bfloat16, and {there} in a wider "
        f"format: {names} need FP32 there for the runs to follow one policy"
    )


def _narrow(run: Columns) -> dict[str, bool]:
    """Return by gradient whether all its numbers are of BF16, for gradients wider than weights of 16 bits."""
    weights = run.named("kind", "param") & run.named("phase", "init") & run.named("dtype", "bfloat16")
    narrow = {run.name("tensor", row) for row in np.flatnonzero(weights).tolist()}
    grads = run.named("kind", "param_grad") & run.named("phase", "reduce") & ~run.named("dtype", "bfloat16")
    found: dict[str, bool] = {}
    for row in np.flatnonzero(grads & (run.reals["sum_squares"] > 0)).tolist():
        name = run.name("tensor", row)
        if name.removesuffix(".grad") in narrow:
            found[name] = found.get(name, True) and bool(run.lowbits[row])
    return found
