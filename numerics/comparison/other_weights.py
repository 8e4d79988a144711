"""Weights that are not the baseline's: other ones, or the same in another format."""

import numpy as np

from numerics.comparison.tensor_table import Status
from numerics.comparison.verdict import Case
from numerics.formats import least_roundoff
from numerics.thresholds.comparison import ROUNDED_WEIGHTS


def other_initial_weights(case: Case) -> str | None:
    """Return a sentence where the run begins with other weights than the baseline, not the same in another format."""
    if case.tensors is None or case.baseline is None:
        return None
    table, own = case.tensors, case.run.names.number
    before = (table.phase == own("init")) & (table.kind == own("param")) & (table.step < 0)
    for at in np.flatnonzero(before & (table.status == Status.DIFFERENT)):
        left, right = int(table.left[at]), int(table.right[at])
        formats = [case.run.name("dtype", left), case.baseline.name("dtype", right)]
        allowed = ROUNDED_WEIGHTS * max(map(least_roundoff, formats))
        if formats[0] == formats[1] or table.relative[at] > allowed:
            name = case.run.name("tensor", left)
            return f"{name} is not the baseline's before the first step: other weights"
    return None


def other_formats(case: Case) -> str:
    """Return in words that the runs hold a weight in two formats, which makes them differ beside the order of sums."""
    if case.tensors is None or case.baseline is None:
        return ""
    table = case.tensors
    held = (table.kind == case.run.names.number("param")) & (table.status == Status.DIFFERENT)
    for at in np.flatnonzero(held):
        left, right = int(table.left[at]), int(table.right[at])
        mine, other = case.run.name("dtype", left), case.baseline.name("dtype", right)
        if mine != other:
            name = case.run.name("tensor", left)
            return f"it holds {name} in {mine} where the baseline holds it in {other}, and differs by their rounding"
    return ""
