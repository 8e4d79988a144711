"""What is wrong with the tensor that a local proof blames: the sentence, its place in the run, the explanation."""

import numpy as np

from numerics.columns import Columns
from numerics.comparison.first_divergence import at_row
from numerics.comparison.joins.mesh_axes import apart_axis, axis_of_ranks, axis_sizes
from numerics.findings import Divergence
from numerics.local.judgement import Standing
from numerics.local.local_check import LocalCheck
from numerics.local.proof import LocalProof
from numerics.local.records.recorded import ADDENDS
from numerics.thresholds.comparison import LEAST_FITTED

RIGHT = {
    "forward": "what its module computes from the recorded inputs",
    "backward": "the gradient that follows from the recorded ones",
    "reduce": "the sum of what the backwards of its ranks and micro-batches add",
    "step": "what the optimiser makes of the recorded gradient and state",
}
"""By phase, in the order in which data flow: what a recorded tensor ought to be."""


def is_summed(one: LocalCheck) -> bool:
    """Return whether what the ranks hold of a tensor adds up to the right value."""
    return one.check.judged.how == ADDENDS and one.check.judged.standing <= Standing.WITHIN


def reason_of(wrong: LocalCheck) -> str:
    """Return what is wrong with the blamed tensor, as a sentence."""
    check, judged = wrong.check, wrong.check.judged
    if wrong.rows:
        return (
            f"{check.tensor} is not what its ranks put in, in any order: {judged.differ} of {judged.elements} elements "
            "differ" + (f"; {judged.how}" if judged.how else "")
        )
    if not judged.elements and judged.relation:
        return f"{check.tensor}: {judged.relation}"
    if judged.apart:
        return f"{check.tensor} differs between its copies: {judged.relation}"
    if is_summed(wrong):
        return f"the ranks hold addends of {check.tensor}, and it is used as if it had been summed"
    if judged.lone:
        return f"{check.tensor} is not {RIGHT[check.phase]}: {judged.lone}, which no rounding does"
    text = f"{check.tensor} is not {RIGHT[check.phase]}: {judged.differ} of {judged.elements} elements differ"
    return text if judged.use is None else f"{text}, by up to {judged.use:.3g} times what rounding can do"


def divergence_of(run: Columns, wrong: LocalCheck, proof: LocalProof) -> Divergence:
    """Return the place of the blamed check in the run."""
    if wrong.rows:
        return at_row(
            run, wrong.rows, "an order of its recorded inputs was sought, and none gives its output"
        )
    place, check = wrong.place, wrong.check
    rows = (run["step"] == wrong.step) & run.named("tensor", check.tensor) & run.named("phase", check.phase)
    if place is not None:
        rows &= (run["dp"] == place[0]) & (run["micro_batch"] == place[1])
    at_places = [c for c in proof.checks if c.place is not None and c.step == wrong.step]
    alike = [c for c in at_places if c.check.tensor == check.tensor]
    bad = sum(c.check.judged.standing == Standing.BEYOND for c in alike)
    how_often = f"wrong in {bad} of {len(alike)} micro-batches of all data-parallel ranks"
    return Divergence(
        step=wrong.step,
        phase=check.phase,
        micro_batch=None if place is None else place[1],
        module=check.module,
        tensor=check.tensor,
        collective=None,
        axis=_axis(run, wrong),
        ranks=wrong.ranks or tuple(sorted(set(run["rank"][rows].tolist()))),
        evidence=how_often if place is not None and bad else "",
    )


def _axis(run: Columns, wrong: LocalCheck) -> str | None:
    """Return the axis that the relation names, that has the factor as its size, or along which copies differ."""
    sizes = axis_sizes(run)
    judged = wrong.check.judged
    if wrong.axis is not None:
        return wrong.axis
    if judged.how == ADDENDS or judged.apart:
        return next((axis for axis in ("tp", "cp") if sizes[axis] > 1), "tp")
    if wrong.check.phase == "reduce" and judged.how:
        several = [axis for axis, size in sizes.items() if size > 1]
        if wrong.ranks and (apart := axis_of_ranks(run, wrong.ranks)) is not None:
            return apart
        if sizes["dp"] > 1:
            return "dp"
        return several[0] if wrong.ranks and len(several) == 1 else None
    if judged.factors is not None:
        low, high = judged.factors
        for axis, size in sizes.items():
            if size > 1 and any(low <= f <= high for f in (size, 1 / size)):
                return axis
    if wrong.check.phase == "reduce" and judged.relation and wrong.ranks:
        rows = (
            (run["step"] == wrong.step)
            & run.named("tensor", wrong.check.tensor)
            & run.named("phase", "reduce")
        )
        return apart_axis(run, np.flatnonzero(rows & np.isin(run["rank"], wrong.ranks)).tolist())
    return None


def explanation_of(run: Columns, wrong: LocalCheck) -> str | None:
    """Return the relation of the recorded tensor to the right one in words; None where none holds."""
    judged = wrong.check.judged
    if judged.lone or wrong.rows:
        return judged.lone or judged.how or None
    misplaced = judged.relation or _stale(run, wrong)
    if misplaced:
        return misplaced
    if is_summed(wrong):
        return "missing all-reduce: the sum over these ranks is right, each holds its own addend"
    if wrong.check.phase == "reduce" and judged.how:
        return judged.how
    if judged.factors is not None and judged.elements >= LEAST_FITTED:
        axis, size = _axis(run, wrong), axis_sizes(run)
        middle = sum(judged.factors) / 2
        exact = 0.0 if axis is None else float(size[axis]) if middle > 1 else 1 / size[axis]
        named = f" (= {'1/' if middle < 1 else ''}{axis})" if axis else ""
        return f"{exact or middle:.6g}{named} times the right value, within rounding"
    return None


def _stale(run: Columns, wrong: LocalCheck) -> str:
    """Return that the recorded tensor is its own of an earlier step, in every bit on all ranks; else nothing."""
    same = run.named("tensor", wrong.check.tensor) & run.named("phase", wrong.check.phase)
    place = (-1, -1) if wrong.place is None else wrong.place
    if wrong.place is not None:
        same &= (run["dp"] == place[0]) & (run["micro_batch"] == place[1])
    columns = ("rank", "boxes", "kind")
    now = np.flatnonzero(same & (run["step"] == wrong.step))
    held = {(*(int(run[c][row]) for c in columns), int(run.digest[row])) for row in now}
    for back in range(1, wrong.step + 1):
        then = np.flatnonzero(same & (run["step"] == wrong.step - back))
        before = {(*(int(run[c][row]) for c in columns), int(run.digest[row])) for row in then}
        if held and held <= before and wrong.check.judged.elements >= LEAST_FITTED:
            return f"stale by {back} step{'s' * (back > 1)}: the value of step {wrong.step - back}"
    return ""
