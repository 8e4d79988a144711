"""Weights that are not the baseline's: other ones, or the same in another format."""

import numpy as np
import torch

from numerics.comparison.joins.tensor_table import Status
from numerics.comparison.verdict import Case
from numerics.formats import least_roundoff
from numerics.local.records.recorded import ADDENDS, RecordedRun, same_bits
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
    return _other_parts(RecordedRun(case.run), RecordedRun(case.baseline))


def _other_parts(run: RecordedRun, baseline: RecordedRun) -> str | None:
    """Return a sentence where a weight that ranks hold as plain copies or parts is not the baseline's; None otherwise.

    Which part each rank holds was not recorded, so that the table of tensors leaves these out.
    """
    for name in run.names(-1, "init", "param"):
        rows = run.rows(-1, "init", "param", name)
        right = _whole(baseline, name) if all(map(run.unplaced, rows)) else None
        if right is None:
            continue
        read = [one for one in run.whole(rows, tuple(right.shape), batch=False) if one.how != ADDENDS]
        if not read or any(one.tensor.dtype != right.dtype or same_bits(one.tensor, right) for one in read):
            continue
        numbers = right.reshape(-1).sort().values
        moved = any(torch.equal(one.tensor.reshape(-1).sort().values, numbers) for one in read)
        what = "a rank holds another's part" if moved else "other weights"
        return f"{name}, {read[0].how} over its ranks, is not the baseline's before the first step: {what}"
    return None


def _whole(run: RecordedRun, name: str) -> torch.Tensor | None:
    """Return a weight before the first step; None where it is not known whole."""
    found = run.whole(run.rows(-1, "init", "param", name), None, batch=False)
    return found[0].tensor if len(found) == 1 and not found[0].how else None


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
