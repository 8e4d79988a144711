"""Gradients that one run sums in BF16 and the other in a wider format: by sums, or the numbers that step weights."""

from collections import Counter
from typing import Final

import numpy as np

from numerics.columns import Columns
from numerics.comparison.joins.mesh_axes import group_axis
from numerics.comparison.verdict import Case
from numerics.formats import UNIT_ROUNDOFF, least_roundoff
from numerics.thresholds.report import NAMES_IN_SENTENCE

_SUMS: Final = ("all_reduce", "reduce_scatter")


def other_sums(case: Case) -> str | None:
    """Return a sentence where weights narrower than FP32 are stepped by sums in BF16 in one run alone; None otherwise.

    Where these do not show it, what ranks reduce may be in another format.

    A gradient in a wider format with numbers that BF16 all holds was summed in it; one whole sum of FP32 numbers, which
    are no multiples of one factor, is not so by chance. One that was scaled behind its sum shows nothing.
    """
    if case.baseline is None:
        return None
    mine, other = _narrow(case.run), _narrow(case.baseline)
    common = mine.keys() & other.keys()
    apart = sorted(name for name in common if mine[name] != other[name])
    one_way = len({mine[name] for name in apart}) == 1
    sides = (case.run, case.baseline) if apart and mine[apart[0]] else (case.baseline, case.run)
    if not one_way or not _same_sums(*sides):
        return _reduced_otherwise(case.run, case.baseline)
    names = ", ".join(apart[:NAMES_IN_SENTENCE]) + (", …" if len(apart) > NAMES_IN_SENTENCE else "")
    here, there = ("the run", "the baseline") if mine[apart[0]] else ("the baseline", "the run")
    return (
        f"{here} sums the gradients of {len(apart)} of {len(common)} weights in bfloat16, and {there} in a wider "
        f"format: {names} need FP32 there for the runs to follow one policy"
    )


def _same_sums(narrow: Columns, wide: Columns) -> bool:
    """Return whether a run with gradients that BF16 holds makes a sum that the other one makes in a wider format.

    Ranks add up micro-batches, then these sums over ranks. A run of one data-parallel rank makes the first sum alone,
    and what the other's ranks send into the second one shows the first.
    """
    if len(np.unique(narrow["dp"])) > 1 or len(np.unique(wide["dp"])) == 1:
        return True
    several = len(np.unique(narrow["micro_batch"][narrow["micro_batch"] >= 0])) > 1
    sent: Counter[bool] = Counter()
    for row in _sent(wide):
        sent[bool(wide.lowbits[row])] += int(wide["numel"][row])
    return several and sent[False] > sent[True]


def _reduced_otherwise(run: Columns, baseline: Columns) -> str | None:
    """Return a sentence where runs sum gradients over data-parallel ranks in unlike formats; None elsewhere."""
    here, there = (_format(side) for side in (run, baseline))
    if not here or not there or least_roundoff(here) == least_roundoff(there):
        return None
    narrow, wide = sorted((here, there), key=least_roundoff, reverse=True)
    coarse = "the run" if narrow == here else "the baseline"
    return (
        f"the run sums its gradients over data-parallel ranks in {here}, and the baseline in {there}: the buffers of "
        f"{coarse} that are reduced need {wide} for the runs to follow one policy"
    )


def _format(run: Columns) -> str:
    """Return the format of most numbers that are summed over data-parallel ranks in, or after, backwards; "" of none.

    What a trainer adds up beside its gradients (metrics, counts) is small.
    """
    elements: Counter[str] = Counter()
    for row in _sent(run):
        elements[run.name("dtype", row)] += int(run["numel"][row])
    return max(elements, key=elements.__getitem__, default="")


def _sent(run: Columns) -> list[int]:
    """Return the rows of numbers that are summed over data-parallel ranks in, or after, backwards."""
    found = run.named("kind", "collective_in") & run.named("phase", "backward", "reduce")
    rows = np.flatnonzero(found & run.named("op", *_SUMS)).tolist()
    return [row for row in rows if group_axis(run, row) == "dp" and run.name("dtype", row) in UNIT_ROUNDOFF]


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
