"""Decides a case without a replay and without a model: by the records of both runs, and by what they have in common.

The run's sums and its optimiser's steps follow from its own records (`record_proof`). What its modules compute is held
against the baseline in the first step, where both start from the same weights: outputs in bits, gradients of outputs by
one factor for all (a mean over other numbers of sequences), reduced gradients by their rounding.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from numerics.columns import Columns
from numerics.comparison.local_answer import broken_before, first_wrong, reason_of
from numerics.comparison.local_scope import scope_of
from numerics.comparison.other_inputs import other_inputs
from numerics.comparison.other_settings import other_settings
from numerics.comparison.tensor_table import Status
from numerics.comparison.verdict import Case, Decision, growth
from numerics.formats import least_roundoff
from numerics.local.judgement import Standing, ratio
from numerics.local.proof import LocalProof
from numerics.local.record_proof import prove_records
from numerics.local.recorded import RecordedRun
from numerics.thresholds.comparison import NO_DIVISOR, SUDDEN_GROWTH
from numerics.thresholds.local import LEAST_GRADIENTS, ORDER_ROUNDINGS, SCALE_TOLERANCE


def records_beside(run: Columns, baseline: Columns | None) -> LocalProof | None:
    """Return what a run's records prove, with what they show beside the baseline's; None where they hold no values."""
    proof = prove_records(run)
    if proof is None or baseline is None or proof.wrong:
        return proof
    beside = _First(run, baseline).compared()
    if not beside.bug:
        return replace(proof, beside=beside.differs or _equal_words(beside))
    return replace(proof, checks=(*proof.checks, wrong))


def decide_by_records(case: Case, proof: LocalProof) -> Decision | None:
    """Return the decision that records give; None where they give none, and the case is decided otherwise."""
    wrong = first_wrong(proof)
    if wrong is not None and not broken_before(case, wrong):
        return Decision("precision_policy" if wrong.check.judged.format else "bug", "local", reason_of(wrong))
    if case.broken or case.beyond_plan:
        return None
    if case.baseline is None:
        return Decision("undecided", "none", f"{_seen(proof)}; there is no baseline, {_MODULES}", case.decide)
    other = other_inputs(case.run, case.baseline) or other_settings(case.run, case.baseline)
    if other is not None:
        return Decision("bug", "local", other)
    beside = prove_records(case.baseline)
    if beside is None:
        return None
    theirs = first_wrong(beside)
    if theirs is not None:
        return Decision("undecided", "none", f"the baseline is wrong itself: {reason_of(theirs)}", case.decide)
    if proof.doubts:
        found = "; ".join(dict.fromkeys(doubt.sentence for doubt in proof.doubts))
        return Decision("undecided", "none", f"{found}: meant or a bug, no record tells", proof.doubts[0].settled)
    return _beside(case, proof, _First(case.run, case.baseline).compared())


_MODULES = "and what the modules compute needs a model or one"


def _seen(proof: LocalProof) -> str:
    """Return what of the run follows from its records, in words."""
    judged = [c for c in proof.checks if c.check.judged.standing != Standing.UNCHECKED]
    sums = sum(c.check.phase == "reduce" for c in judged)
    steps = sum(c.check.phase == "step" for c in judged)
    return (
        f"the run's reduced gradients ({sums}) and what its optimiser made of them ({steps} tensors) follow from its records"
    )


@dataclass(frozen=True)
class _FirstStep:
    """How the first steps of two runs compare; `differs` is a sentence where what they compute is not the same.

    `bug` says that no order of sums makes that difference, `exact` that all outputs and gradients of them are equal in
    bits; `factor` is that of the gradients of outputs, `apart` the largest distance of a gradient, relative.
    """

    differs: str = ""
    bug: bool = False
    exact: bool = True
    factor: float = 1.0
    apart: float = 0.0
    compared: int = 0


class _First:
    """The first step of two runs."""

    def __init__(self, run: Columns, baseline: Columns) -> None:
        self._mine, self._other = RecordedRun(run), RecordedRun(baseline)
        self._step = self._mine.steps[0]
        self._table = [("init", "param"), ("forward", "activation")]

    def compared(self) -> _FirstStep:
        """Return how they compare: weights, outputs, gradients of outputs, gradients as the optimiser saw them."""
        if not self._other.steps or self._other.steps[0] != self._step:
            return _FirstStep("the runs were recorded from other steps on")
        for phase, kind in self._table:
            step = -1 if phase == "init" and self._mine.names(-1, "init", "param") else self._step
            for name in self._mine.names(step, phase, kind):
                pair = self._pair(step, phase, kind, name)
                if pair is not None and not torch.equal(*pair):
                    apart = _apart(*pair)
                    what = "start from other weights" if phase == "init" else "compute other outputs"
                    return _FirstStep(f"the runs {what}: {name} differs by {apart:.2g} of its norm in step {self._step}")
        found = self._backward()
        return found if found.differs else self._reduced(found)

    def _backward(self) -> _FirstStep:
        """Return how the gradients of outputs compare, by one factor for all."""
        names = self._mine.names(self._step, "backward", "activation_grad")
        pairs = {n: p for n in names if (p := self._pair(self._step, "backward", "activation_grad", n)) is not None}
        if not pairs:
            return _FirstStep("no gradient of an output is in both records")
        factors = sorted(f for pair in pairs.values() if (f := ratio(*pair)) is not None)
        factor = factors[len(factors) // 2] if factors else 1.0
        factor = 1.0 if abs(factor - 1) <= SCALE_TOLERANCE else factor
        exact = factor == 1 and all(torch.equal(*pair) for pair in pairs.values())
        for name, (mine, other) in pairs.items():
            apart = _apart(mine.double(), factor * other.double())
            if apart > _order(mine):
                return _FirstStep(f"{name} of step {self._step} is {apart:.2g} of its norm apart from {factor:.4g} times the baseline's")
        return _FirstStep(exact=exact, factor=factor, compared=len(pairs))

    def _reduced(self, found: _FirstStep) -> _FirstStep:
        """Return how the gradients compare that the optimisers saw: they follow from equal outputs and their gradients."""
        apart, wrong = 0.0, ""
        names = self._mine.names(self._step, "reduce", "param_grad")
        pairs = {n: p for n in names if (p := self._pair(self._step, "reduce", "param_grad", n, batch=False)) is not None}
        if not pairs:
            return replace(found, differs="no gradient that an optimiser saw is in both records")
        factors = sorted(f for pair in pairs.values() if (f := ratio(*pair)) is not None)
        middle = factors[len(factors) // 2] if len(factors) >= LEAST_GRADIENTS else 1.0
        if abs(middle - 1) > SCALE_TOLERANCE:
            text = f"all gradients of step {self._step} are {middle:.6g} times the baseline's, from equal outputs"
            return replace(found, differs=text, bug=True)
        for name, (mine, other) in pairs.items():
            one = _apart(mine, other)
            wrong = wrong or (f"{name} of step {self._step} is {one:.2g} of its norm apart from the baseline's" if one > _order(mine) else "")
            apart = max(apart, one)
        return replace(found, differs=wrong, bug=bool(wrong), apart=apart, compared=found.compared + len(pairs))

    def _pair(
        self, step: int, phase: str, kind: str, name: str, *, batch: bool | None = None
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return a tensor of both runs, whole; None where either holds it in unknown parts, or several times."""
        batch = phase in {"forward", "backward"} if batch is None else batch
        found = []
        for recorded in (self._mine, self._other):
            rows = recorded.rows(step, phase, kind, name)
            where = [tuple(int(recorded.run[c][r]) for c in ("rank", "micro_batch")) for r in rows]
            if not rows or len(set(where)) != len(rows) or any(recorded.unplaced(row) for row in rows):
                return None
            whole = recorded.whole(rows, None, batch=batch)
            if not whole:
                return None
            found.append(whole[0].tensor)
        mine, other = found
        return (mine, other) if mine.shape == other.shape and mine.dtype == other.dtype else None


def _apart(mine: torch.Tensor, other: torch.Tensor) -> float:
    size = float(other.double().norm())
    return float((mine.double() - other.double()).norm()) / max(size, NO_DIVISOR)


def _order(value: torch.Tensor) -> float:
    """Return the relative distance that an order of sums may make in a tensor's format."""
    return ORDER_ROUNDINGS * least_roundoff(str(value.dtype).removeprefix("torch."))


def _beside(case: Case, proof: LocalProof, first: _FirstStep) -> Decision:
    """Decide a case by how the first steps of both runs compare, where each follows from its own records."""
    if first.bug:
        return Decision("bug", "local", f"{first.differs}, which no order of sums makes")
    if first.differs:
        return Decision("undecided", "none", f"{_seen(proof)}, but {first.differs}: a rounding or a bug", case.decide)
    if case.tensors is not None:
        sizes = growth(case.tensors)
        jumps = [(s, after) for (_, before), (s, after) in zip(sizes, sizes[1:], strict=False) if after > SUDDEN_GROWTH * before]
        if jumps:
            step, size = jumps[0]
            return Decision("undecided", "none", f"the difference from the baseline jumps to {size:.2g} in step {step}", case.decide)
    later = [step for step in np.unique(case.run["step"]).tolist() if step > proof.first_step]
    unseen = [text for text in proof.unseen if not text.startswith("what the modules compute")]
    if later:
        unseen.insert(0, f"what the modules compute after step {proof.first_step}: the weights differ by roundings since")
    equal = all(c.check.judged.standing in {Standing.EQUAL, Standing.UNCHECKED} for c in proof.checks)
    given = f"{scope_of(unseen)}{_seen(proof)}, and step {proof.first_step} gives the baseline's outputs in every bit"
    if first.exact and equal:
        return Decision("drift", "local", f"{given}, and the gradients of these; its sums are in another order")
    times = "" if first.factor == 1 else f", times {first.factor:.4g}"
    return Decision(
        "rounding", "bound", f"{given}, and its gradients up to {max(first.apart, 0.0):.2g} of their norm{times and f' (those of outputs{times})'}"
    )
