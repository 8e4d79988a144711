"""Decides a case without a replay and without a model: by the records of both runs, and by what they have in common.

The run's sums and its optimiser's steps follow from its own records (`record_proof`). What its modules compute is held
against the baseline in the first step, where both start from the same weights: outputs in bits, gradients of outputs by
one factor for all (a mean over other numbers of sequences), reduced gradients by their rounding.
"""

from dataclasses import dataclass, replace
from itertools import pairwise

import torch

from numerics.comparison.proofs.local_answer import broken_before, first_wrong
from numerics.comparison.proofs.local_explanation import reason_of
from numerics.comparison.proofs.local_scope import scope_of
from numerics.comparison.proofs.loss_scale import pair_of, times
from numerics.comparison.proofs.other_inputs import other_inputs, same_data
from numerics.comparison.proofs.other_settings import with_other_settings
from numerics.comparison.proofs.other_updates import begun_apart, other_updates
from numerics.comparison.proofs.other_weights import other_changes, with_changes
from numerics.comparison.proofs.output_weights import weighed_beside
from numerics.comparison.unequal_buffers import unequal_buffers
from numerics.comparison.verdict import Case, Decision, growth
from numerics.formats import least_roundoff
from numerics.local.forced_pass import Check
from numerics.local.judgement import Judged, Standing, ratio
from numerics.local.local_check import LocalCheck
from numerics.local.proof import LocalProof
from numerics.local.record_proof import MODULES, prove_records
from numerics.local.records.recorded import RecordedRun
from numerics.thresholds.comparison import NO_DIVISOR, SUDDEN_GROWTH
from numerics.thresholds.local import LEAST_GRADIENTS, ORDER_ROUNDINGS, SCALE_TOLERANCE

_Pair = tuple[torch.Tensor, torch.Tensor]
"""A tensor of the run, and the same of its baseline."""


def answer_by_records(case: Case) -> tuple[Decision, LocalProof] | None:
    """Return the decision that records give, and what they prove; None where they give none."""
    proof = prove_records(case.run)
    if proof is None:
        return None
    proof = with_changes(case, with_other_settings(case.run, case.baseline, proof))
    wrong = first_wrong(proof)
    if wrong is not None and not broken_before(case, wrong):
        narrow = bool(wrong.check.judged.format)
        return Decision("precision_policy" if narrow else "bug", "local", reason_of(wrong)), proof
    if case.broken or case.beyond_plan:
        return None
    if case.baseline is None:
        doubts = "".join(f"{doubt.sentence}; " for doubt in proof.doubts)
        open_yet = f"{doubts}{_seen(proof)}. The records do not hold what its modules compute, and there is no baseline"
        return Decision("undecided", "none", open_yet, case.decide), proof
    return _beside(case, proof)


def _beside(case: Case, proof: LocalProof) -> tuple[Decision, LocalProof] | None:
    """Return the decision on a run without errors in its records, by the records of its baseline."""
    baseline = case.baseline
    beside = None if baseline is None else prove_records(baseline)
    if baseline is None or beside is None:
        return None
    drawn = case.apart is not None and case.apart.inputs
    other = same_data(case.run, baseline) or (None if drawn else other_inputs(case.run, baseline))
    other = other or other_changes(case)
    theirs = first_wrong(beside)
    if other is not None:
        return Decision("bug", "local", other), proof
    if theirs is not None:
        reason = f"{_seen(proof)}, and the baseline is wrong itself: {reason_of(theirs)}"
        return Decision("undecided", "none", reason, case.decide), proof
    unlike = other_updates(case) or begun_apart(case)
    if unlike is not None:
        return unlike, proof
    weighed = weighed_beside(case, RecordedRun(case.run).steps[0])
    if weighed.decision is not None and weighed.certain:
        return weighed.decision, proof
    first = _FirstStep(RecordedRun(case.run), RecordedRun(baseline))
    differs = first.differs()
    if isinstance(differs, LocalCheck):
        return Decision("bug", "local", reason_of(differs)), replace(proof, checks=(*proof.checks, differs))
    reason = differs or _later(case)
    if reason:
        text = "; ".join([f"{_seen(proof)}, but {reason}", *_perhaps(case)])
        return Decision("undecided", "none", text, case.decide), proof
    if proof.doubts:
        found = "; ".join(dict.fromkeys(doubt.sentence for doubt in proof.doubts))
        text = f"{found}: the records do not show whether this is intended"
        return Decision("undecided", "none", text, proof.doubts[0].settled), proof
    return _sound(proof, first), proof


def _perhaps(case: Case) -> list[str]:
    """Return in words what may make two runs differ beside a bug: random numbers, statistics that each rank takes."""
    buffers = unequal_buffers(case.run)
    apart = f"{buffers}: different by design if each rank takes its own statistics" if buffers else ""
    return [text for text in (case.apart.sentence if case.apart else "", apart) if text]


def _seen(proof: LocalProof) -> str:
    """Return what of the run follows from its records, in words."""
    judged = [c for c in proof.checks if c.check.judged.standing != Standing.UNCHECKED]
    sums = sum(c.check.phase == "reduce" for c in judged)
    steps = sum(c.check.phase == "step" for c in judged)
    return f"the run's sums ({sums}) and what its optimiser makes of them ({steps} tensors) follow from its records"


def _later(case: Case) -> str:
    """Return in words that later steps differ by more than weights that differ by roundings explain; else ""."""
    sizes = [] if case.tensors is None else growth(case.tensors)
    jump = next(
        ((s, after) for (_, before), (s, after) in pairwise(sizes) if after > SUDDEN_GROWTH * before), None
    )
    return (
        "" if jump is None else f"the difference from the baseline jumps to {jump[1]:.2g} in step {jump[0]}"
    )


def _sound(proof: LocalProof, first: "_FirstStep") -> Decision:
    """Decide a case in which both runs follow from their records and the first step of both is the same."""
    unseen = [text for text in proof.unseen if text != MODULES]
    if first.mine.steps[-1] > first.step:
        unseen.insert(
            0, f"what the modules compute after step {first.step}: the weights differ by roundings since"
        )
    equal = all(c.check.judged.standing in {Standing.EQUAL, Standing.UNCHECKED} for c in proof.checks)
    given = f"{_seen(proof)}, and step {first.step} gives the baseline's outputs in every bit"
    scope = scope_of(unseen)
    if first.exact and equal:
        return Decision(
            "drift", "local", f"{given}, and their gradients: only the order of sums differs{scope}"
        )
    return Decision(
        "rounding",
        "bound",
        f"{given}, and its gradients but for roundings ({first.apart:.2g} of their norm at most){scope}",
    )


@dataclass
class _FirstStep:
    """The first step of two runs; `exact` and `apart` say how outputs' and optimisers' gradients compare, once asked.

    `exact` says that all gradients of outputs are one factor times the baseline's in every bit, `apart` how far the
    gradients are apart that the optimisers saw, the largest, relative to its norm.
    """

    mine: RecordedRun
    other: RecordedRun
    exact: bool = True
    apart: float = 0.0

    @property
    def step(self) -> int:
        """The run's first step."""
        return self.mine.steps[0]

    def differs(self) -> str | LocalCheck:
        """Return in words what leaves the comparison open, or the check that no order of sums explains; else ""."""
        if self.other.steps[:1] != [self.step]:
            return "the baseline was recorded from another step on"
        start = -1 if self.mine.names(-1, "init", "param") else self.step
        for step, phase, kind in ((start, "init", "param"), (self.step, "forward", "activation")):
            pairs = self._pairs(step, phase, kind)
            if not pairs:
                return f"no {'weight' if phase == 'init' else 'output'} of the first step is in both records"
            for name, pair in pairs.items():
                if not torch.equal(*pair):
                    away = _apart(*pair)
                    alike = "compute outputs that differ by roundings" if away <= _order(pair[0]) else ""
                    how = "start from other weights" if phase == "init" else alike or "compute other outputs"
                    return f"the runs {how}: {name} is {away:.2g} of its norm apart in step {self.step}"
        return self._backward() or self._reduced()

    def _backward(self) -> str:
        """Return in words which gradient of an output is not one common factor times the baseline's; else ""."""
        pairs = self._pairs(self.step, "backward", "activation_grad")
        if not pairs:
            return "no gradient of an output is in both records"
        factor = _factor(pairs)
        for name, (mine, other) in pairs.items():
            right = (factor * other.double()).to(mine.dtype)
            self.exact = self.exact and torch.equal(mine, right)
            if _apart(mine, right) > _order(mine):
                due = "the baseline's" if factor == 1 else f"{factor:.4g} times the baseline's"
                return f"{name} of step {self.step} is {_apart(mine, right):.2g} of its norm apart from {due}"
        return ""

    def _reduced(self) -> str | LocalCheck:
        """Return the first gradient of an optimiser that equal outputs and their gradients do not explain; else ""."""
        pairs = self._pairs(self.step, "reduce", "param_grad")
        if not pairs:
            return "no gradient that an optimiser saw is in both records"
        mine, other = (set(side.names(self.step, "reduce", "param_grad")) for side in (self.mine, self.other))
        alone = sorted(mine ^ other)
        if alone:
            ends = ("the run's", "the baseline's") if alone[0] in mine else ("the baseline's", "the run's")
            return self._wrong(
                alone[0], f"{ends[0]} optimiser gets it, and {ends[1]} does not: frozen, or not reduced"
            )
        factor = _factor(pairs) if len(pairs) >= LEAST_GRADIENTS else 1.0
        named = [pair_of(name, *pair) for name, pair in pairs.items()]
        if factor != 1 and times(named, factor) and not times(named, 1.0):
            text = f"all gradients are {factor:.6g} times the baseline's, from the same outputs"
            return self._wrong(next(iter(pairs)), f"{text}: the loss, a reduction or a clip scales otherwise")
        return self._beyond_order(pairs)

    def _beyond_order(self, pairs: dict[str, _Pair]) -> str | LocalCheck:
        """Return the first gradient that no order of its terms makes, in words if terms elsewhere might; else ""."""
        usual = _root_mean_square(torch.cat([other.double().flatten() for _, other in pairs.values()]))
        faint = ""
        for name, (mine, other) in pairs.items():
            away = mine.double() - other.double()
            share = float(away.norm()) / max(
                float(other.double().norm()), self._terms(name, other), NO_DIVISOR
            )
            if share <= _order(mine):
                self.apart = max(self.apart, share)
                continue
            text = f"it is {_apart(mine, other):.2g} of its norm apart from the baseline's, from the same outputs"
            if _root_mean_square(away) > _order(mine) * usual:
                return self._wrong(name, f"{text} and gradients of outputs, which no order of sums makes")
            faint = faint or (
                f"{name} is {_apart(mine, other):.2g} of its norm apart from the baseline's in step {self.step}, which "
                "rounding makes only if its terms cancel: it is small beside the other gradients"
            )
        return faint

    def _terms(self, name: str, grad: torch.Tensor) -> float:
        """Return the norm of a gradient's terms without their signs, for a parameter along its module's output.

        A bias adds to each output, so that its gradient's terms are the gradients of the output. They may cancel: a
        bias of keys moves all scores alike, and a bias before a normalisation is taken off again. 0 for others.
        """
        output = f"{name.removesuffix('.grad').rpartition('.')[0]}.out.grad".removeprefix(".")
        pair = self._pair(self.step, "backward", "activation_grad", output) if grad.dim() == 1 else None
        if pair is None:
            return 0.0
        sizes = pair[1].double().abs()
        along = next((d for d in (-1, 1) if sizes.dim() > 1 and sizes.shape[d] == grad.numel()), None)
        return 0.0 if along is None else float(sizes.movedim(along, 0).flatten(1).sum(1).norm())

    def _wrong(self, tensor: str, text: str) -> LocalCheck:
        module = tensor.removesuffix(".grad").rpartition(".")[0]
        return LocalCheck(
            self.step, None, Check(tensor, module, "reduce", Judged(Standing.BEYOND, relation=text))
        )

    def _pairs(self, step: int, phase: str, kind: str) -> dict[str, _Pair]:
        """Return the tensors that both runs hold whole and once, by name."""
        names = self.mine.names(step, phase, kind)
        return {n: pair for n in names if (pair := self._pair(step, phase, kind, n)) is not None}

    def _pair(self, step: int, phase: str, kind: str, name: str) -> _Pair | None:
        found = []
        for side in (self.mine, self.other):
            rows = side.rows(step, phase, kind, name)
            where = {tuple(int(side.run[c][row]) for c in ("rank", "micro_batch")) for row in rows}
            if not rows or len(where) != len(rows) or any(side.unplaced(row) for row in rows):
                return None
            whole = side.whole(rows, None, batch=phase in {"forward", "backward"})
            if len(whole) != 1 or whole[0].how:
                return None
            found.append(whole[0].tensor)
        mine, other = found
        return (mine, other) if mine.shape == other.shape and mine.dtype == other.dtype else None


def _factor(pairs: dict[str, _Pair]) -> float:
    """Return the factor between most tensors of two runs; 1 where it is that within the tolerance of factors."""
    factors = sorted(found for pair in pairs.values() if (found := ratio(*pair)) is not None)
    middle = factors[len(factors) // 2] if factors else 1.0
    return 1.0 if abs(middle - 1) <= SCALE_TOLERANCE else middle


def _apart(mine: torch.Tensor, other: torch.Tensor) -> float:
    return float((mine.double() - other.double()).norm()) / max(float(other.double().norm()), NO_DIVISOR)


def _root_mean_square(value: torch.Tensor) -> float:
    return float(value.square().mean().sqrt())


def _order(value: torch.Tensor) -> float:
    """Return the relative distance that an order of sums may make in a tensor's format."""
    return ORDER_ROUNDINGS * least_roundoff(str(value.dtype).removeprefix("torch."))
