"""Decides a case by its local proof: each recorded piece against its own recorded inputs."""

from collections.abc import Sequence

from numerics.columns import Columns
from numerics.comparison.proofs.baseline_beside import computed_apart, other_baseline, parted
from numerics.comparison.proofs.by_design import differs_by_design
from numerics.comparison.proofs.local_explanation import RIGHT, is_summed, reason_of
from numerics.comparison.proofs.local_scope import never_seen_sent, not_checked, scope_of
from numerics.comparison.proofs.loss_scale import other_loss, other_weights, place_of_factor
from numerics.comparison.proofs.other_inputs import other_inputs, same_data
from numerics.comparison.proofs.other_sums import other_sums
from numerics.comparison.proofs.other_updates import begun_apart, gradients_alone, other_updates
from numerics.comparison.proofs.other_weights import (
    other_changes,
    other_formats,
    other_initial_weights,
    with_changes,
)
from numerics.comparison.proofs.output_weights import Weighed, weighed_beside
from numerics.comparison.unequal_buffers import other_buffers, statistics_declared
from numerics.comparison.verdict import Case, Decision, baseline_kinds, computed_in_common, equal_runs
from numerics.local.judgement import Standing
from numerics.local.local_check import Doubt, LocalCheck
from numerics.local.proof import LocalProof
from numerics.local.records.skipped_updates import empty_updates
from numerics.schema import LEARNING_RATE, PHASES

_LOST_LOSS = (
    "the model keeps in addition to its output (usually an auxiliary loss), contributes to gradients of the baseline "
    "but not of the run: the records do not show whether this is intended"
)
_KINDS = {"module": ("forward", "backward"), "gradient": ("reduce",), "update": ("step",)}
"""What is proved, by the phases of its checks."""


def decide_locally(case: Case, proof: LocalProof, baseline: LocalProof | None = None) -> Decision:
    """Return the decision on a comparable case by its local proof.

    `baseline` is the baseline's own proof, if the answer needs it: the baseline drew other random numbers
    (`case.apart`), or a loss in addition to the model's output may contribute to its gradients.
    """
    proof = with_changes(case, proof)
    wrong = first_wrong(proof)
    if wrong is not None and not broken_before(case, wrong):
        narrow = bool(wrong.check.judged.format)
        return Decision("precision_policy" if narrow else "bug", "local", reason_of(wrong))
    kinds = baseline_kinds(case)
    common = case.tensors is not None and bool(computed_in_common(case.run, case.tensors).any())
    if kinds is not None and not kinds.real and common and not _other_buffers(case):
        return equal_runs(case, kinds)
    if case.broken:
        return Decision("bug", "invariant", case.broken[0].sentence)
    unlike = _unlike_baseline(case, proof)
    if unlike is not None:
        return unlike
    compared = not (proof.spread or _declared(case, proof))
    weighed = weighed_beside(case, proof.first_step) if compared else Weighed()
    if weighed.decision is not None and weighed.certain:
        return weighed.decision
    other = _other_loss(case, proof, baseline)
    if other:
        where = None if case.apart else place_of_factor(proof, case.run, case.baseline)
        return other_baseline(case, other) or Decision("bug", "local", other, where=where)
    lost = [] if baseline is None else [one for one in proof.silent if one not in baseline.silent]
    if lost and case.apart is None:
        return Decision("undecided", "none", f"{lost[0]}, which {_LOST_LOSS}", case.decide)
    found = _unplaced(proof) if proof.spread else never_seen_sent(case.run) or _sound(case, proof, weighed)
    found = found if _declared(case, proof) else computed_apart(case, found)
    wrong = None if baseline is None else first_wrong(baseline)
    return parted(case, found, proof, baseline, "" if wrong is None else reason_of(wrong))


def _unlike_baseline(case: Case, proof: LocalProof) -> Decision | None:
    """Return the decision where a run got or did something else than its baseline, or differs by design; None else."""
    other = same_data(case.run, case.baseline)
    other = other or (None if case.apart and case.apart.inputs else other_inputs(case.run, case.baseline))
    other = other or other_initial_weights(case) or other_changes(case) or gradients_alone(case)
    if other:
        return Decision("bug", "local", other)
    policy = other_sums(case)
    if policy:
        return Decision("precision_policy", "local", policy)
    open_yet = other_updates(case) or begun_apart(case)
    return open_yet or (None if proof.spread else differs_by_design(case, proof))


def _other_buffers(case: Case) -> bool:
    """Return whether a rank holds other buffers than the baseline's same rank, as no whole tensor shows."""
    return case.baseline is not None and other_buffers(case.run, case.baseline)


def _other_loss(case: Case, proof: LocalProof, baseline: LocalProof | None) -> str | None:
    """Return a sentence where the run's loss is scaled or weighted otherwise than the baseline's; None where it is not.

    Where the runs drew other random numbers, what positions count is compared. Doubts about the loss explain it.
    """
    if _declared(case, proof):
        return None
    why = "".join(doubt.sentence for doubt in proof.doubts[:1])
    beside = case.run, case.baseline, why
    other = other_weights(proof, baseline) if case.apart else other_loss(proof, *beside)
    return f"{other}; {why}" if other and why and why not in other else other


def _unplaced(proof: LocalProof) -> Decision:
    """Return the open decision on a case in which the places of an input's pieces are unknown."""
    return Decision(
        "undecided",
        "none",
        f"ranks with the same data-parallel index got different pieces of {proof.spread}, as with context parallelism, "
        "and the run does not say which piece each rank holds: only collectives and updates were checked",
        "capture again with `watch(place=...)`, which records which part of each input and activation a rank holds, "
        "and compare again",
    )


def broken_before(case: Case, wrong: LocalCheck) -> bool:
    """Return whether the run contradicts itself before the first check that is beyond its bound.

    What one optimiser step made has no order: parameters are recorded one after another.
    """
    if not case.broken:
        return False
    run, row, phases = case.run, case.broken[0].row, list(PHASES)
    phase = run.name("phase", row)
    if (int(run["step"][row]), phase) != (wrong.step, wrong.check.phase):
        here, there = phases.index(phase), phases.index(wrong.check.phase)
        return (int(run["step"][row]), here) < (wrong.step, there)
    if phase == "step":
        return False
    same = run.named("tensor", wrong.check.tensor) & (run["rank"] == run["rank"][row])
    same &= (run["step"] == wrong.step) & run.named("phase", phase)
    return bool(same.any()) and int(run["order"][row]) < int(run["order"][same].min())


def _sound(case: Case, proof: LocalProof, weighed: Weighed) -> Decision:
    """Decide a case in which nothing is wrong: proved, or not all of it was seen.

    How the baseline's loss weighs settles doubts about how the run's does.
    """
    judged = [(c.check, c.check.judged) for c in proof.checks]
    doubt = next((c for c, j in judged if j.standing == Standing.UNCHECKED and j.differ), None)
    if doubt is not None:
        reason = f"{doubt.tensor} differs from {RIGHT[doubt.phase]}, and {doubt.judged.why}"
        return Decision("undecided", "none", reason, case.decide)
    checked = [(c, j) for c, j in judged if j.standing != Standing.UNCHECKED]
    if not any(c.phase == "forward" for c, _ in checked):
        return Decision("undecided", "none", "no module's output could be checked", case.decide)
    seen = {
        c.check.phase
        for c in proof.checks
        if not (c.rows or c.check.tensor.startswith(LEARNING_RATE))
        and c.check.judged.standing != Standing.UNCHECKED
    }
    kinds = [word for word, phases in _KINDS.items() if seen & set(phases)]
    if "gradient" not in kinds and "update" not in kinds and not _only_forward(case.run):
        return _without_updates(case)
    shared = [doubt for doubt in proof.doubts if doubt.of_loss and weighed.alike]
    doubts = [doubt for doubt in proof.doubts if doubt not in shared]
    if doubts:
        found = "; ".join(dict.fromkeys(doubt.sentence for doubt in doubts))
        return Decision(
            "undecided",
            "none",
            f"{found}: the records do not show whether this is intended",
            doubts[0].settled,
        )
    return weighed.decision or _proved(case, proof, kinds, shared)


def _without_updates(case: Case) -> Decision:
    """Return the open decision on a trained run without a known update."""
    given = (
        "every module is what its recorded inputs give, but no reduced gradient and no update was recorded"
    )
    if empty_updates(case.run):
        return Decision(
            "undecided",
            "none",
            f"{given}: the optimiser stepped while no parameter had a gradient, so that nothing was trained",
            "call `zero_grad()` behind `optimizer.step()`, or before the backward, and not between them",
        )
    return Decision(
        "undecided",
        "none",
        f"{given}: the optimizer that `watch` was given steps none of the model's parameters, or every update was "
        "skipped",
        case.decide,
    )


def _only_forward(run: Columns) -> bool:
    """Return whether nothing was trained: a capture of forwards, as of an inference engine."""
    return not bool(run.named("phase", "backward", "reduce", "step").any())


def _proved(case: Case, proof: LocalProof, kinds: list[str], shared: Sequence[Doubt] = ()) -> Decision:
    """Decide a case in which all that was checked is right, and say what was not; `shared` has the baseline too."""
    checked = [j for c in proof.checks if (j := c.check.judged).standing != Standing.UNCHECKED]
    every = "every " + (", ".join(kinds[:-1]) + f" and {kinds[-1]}" if len(kinds) > 1 else kinds[0])
    alone = case.baseline is None
    silent = [
        f"{name}, which the model keeps in addition to its output, contributes to no gradient"
        for name in proof.silent
    ]
    both = [f"as in the baseline, {doubt.sentence}" for doubt in shared]
    alike = [found.words for found in proof.draws.alike()]
    said = [text for text in (*alike, proof.repeats if alone else "", *silent, *both) if text]
    scope = "".join(f"; {text}" for text in said) + scope_of(not_checked(case.run, proof, alone=alone))
    equal = sum(j.standing == Standing.EQUAL for j in checked)
    if equal < len(checked):
        use = max(j.use or 0.0 for j in checked)
        return Decision(
            "rounding",
            "bound",
            f"{every} is what its recorded inputs give: {equal} of {len(checked)} tensors in "
            f"every bit, the others within the bound of their rounding (they take up to {use:.2g} of it)"
            + (f"; {formats}" if (formats := other_formats(case)) else "")
            + scope,
        )
    given = f"{every} is bit for bit what its recorded inputs give"
    if case.baseline is None:
        return Decision("identical", "local", given + scope)
    formats = other_formats(case)
    if formats:
        return Decision("rounding", "local", f"{given}: {formats}{scope}")
    causes = "the order of sums" + (" and the declared statistics" if _declared(case, proof) else "")
    why = "" if case.apart is not None else f": only {causes} can make it differ from a sound baseline"
    return Decision("drift", "local", f"{given}{why}{scope}")


def _declared(case: Case, proof: LocalProof) -> bool:
    """Return whether the model computes over a batch, and the run declares that each part of it does so apart."""
    return bool(proof.statistics.words) and statistics_declared(case.run)


def first_wrong(proof: LocalProof) -> LocalCheck | None:
    """Return the check to blame: the first beyond its bound, or the sum that its inputs were left without."""
    phases = list(RIGHT)
    wrong = min(proof.wrong, key=lambda c: (c.step, phases.index(c.check.phase)), default=None)
    if wrong is None or wrong.check.judged.apart:
        return wrong
    before = proof.checks[: proof.checks.index(wrong)]
    here = (wrong.step, wrong.place, wrong.check.phase)
    chain: LocalCheck | None = None
    for check in reversed([c for c in before if (c.step, c.place, c.check.phase) == here]):
        if is_summed(check):
            chain = check
        elif chain is not None:
            break
    return chain or wrong


def local_notes(proof: LocalProof) -> tuple[str, ...]:
    """Return what the proof rests on, in words."""
    standings = [c.check.judged.standing for c in proof.checks]
    equal, within, unchecked, beyond = (standings.count(standing) for standing in Standing)
    counts = (
        f"local proof: {equal} tensors equal in bits, {within} within the bound of their rounding, {beyond} beyond it, "
        f"{unchecked} not checked"
    )
    scales = [f"gradients of step {step}: {scale.words}" for step, scale in sorted(proof.scales.items())[:1]]
    return (counts, *scales, *_loss_scale(proof), *proof.orders, *proof.remarks)


def _loss_scale(proof: LocalProof) -> list[str]:
    """Return in words how the recorded gradients of the output relate to those of the given loss function."""
    found = sorted(set(proof.loss_factors.values()))
    if not found:
        return []
    several = f" to {found[-1]:.6g}" if len(found) > 1 else ""
    return [f"the loss function was repeated: its gradient was scaled by {found[0]:.6g}{several}"]
