"""What a decision on a run says of its baseline, where that computes something else or drew other random numbers."""

from dataclasses import replace
from typing import Final

import numpy as np

from numerics.comparison.first_divergence import at_row, first_of
from numerics.comparison.joins.tensor_table import Status
from numerics.comparison.proofs.drawn_beside import alike_beside
from numerics.comparison.proofs.loss_scale import other_weights
from numerics.comparison.resumed import generators_apart
from numerics.comparison.summary import rows_of
from numerics.comparison.verdict import Case, Decision
from numerics.local.forced_pass import ROOT
from numerics.local.proof import LocalProof
from numerics.thresholds.comparison import OTHER_FORMAT

_COMPUTED: Final = "the run is what the model gives, and the baseline computes something else"
_SEED: Final = (
    "seed each data-parallel rank by its number, and restore every rank's generators (torch.get_rng_state, "
    "torch.cuda.get_rng_state) from the checkpoint"
)


def other_baseline(case: Case, other: str) -> Decision | None:
    """Return an open decision if gradients differ from the baseline's and the model's outputs already do; else None."""
    tensors, number = case.tensors, case.run.names.number
    if tensors is None or case.apart is not None or case.baseline is None:
        return None
    outputs = (tensors.tensor == number(ROOT)) & (tensors.phase == number("forward"))
    outputs &= (tensors.status == Status.DIFFERENT) & (tensors.step == tensors.step[outputs].min(initial=0))
    apart = float(np.nan_to_num(tensors.relative[outputs]).max(initial=0.0))
    if apart <= OTHER_FORMAT:
        return None
    return Decision(
        "undecided",
        "none",
        f"{other}, and the model's outputs differ from the baseline's by {apart:.2g} of their size: "
        + _COMPUTED,
        f"numerics compare --model FILE.py:FUNCTION --parallel {case.baseline.capture.folder}",
    )


def computed_apart(case: Case, found: Decision) -> Decision:
    """Return `found`, or an open decision where the first forward tensor that differs does so by more than roundings.

    Everything before that tensor has equal bits in both runs, so that the order of sums does not explain it, however
    right each piece of the run is by itself. Inputs in another order of sequences are no such tensor.
    """
    tensors = case.tensors
    if found.verdict not in {"rounding", "drift"} or tensors is None or case.baseline is None or case.apart:
        return found
    forward = tensors.phase == case.run.names.number("forward")
    rows = first_of(case.run, rows_of(case.run, tensors, (tensors.status == Status.DIFFERENT) & forward))
    if not rows or case.run.name("kind", rows[0]) == "input":
        return found
    row = rows[0]
    here = forward & tensors.whole & (tensors.tensor == case.run["tensor"][row])
    here &= tensors.step == case.run["step"][row]
    apart = float(np.nan_to_num(tensors.relative[here]).max(initial=0.0))
    if apart <= OTHER_FORMAT:
        return found
    reason = (
        f"{case.run.name('tensor', row)} in step {int(case.run['step'][row])} differs from the baseline's by "
        f"{apart:.2g} of its size, more than roundings do, and nothing before it differs: {_COMPUTED}"
    )
    remedy = f"numerics compare --model FILE.py:FUNCTION --parallel {case.baseline.capture.folder}"
    return Decision("undecided", "none", reason, remedy, where=at_row(case.run, rows, "first difference"))


def parted(
    case: Case, found: Decision, proof: LocalProof, baseline: LocalProof | None, wrong: str
) -> Decision:
    """Return a decision on the run alone with how it parts from its baseline by chance, and how that one is proved.

    `baseline` is the baseline's own proof, `wrong` what that finds wrong, in words. A run that does not part so keeps
    its decision.
    """
    apart = case.apart
    if apart is None or case.baseline is None:
        return found
    if wrong:
        return Decision(
            "undecided",
            "none",
            f"{apart.sentence}; the run by itself is sound, but in the baseline {wrong}",
            f"numerics compare --model FILE.py:FUNCTION --parallel {case.baseline.capture.folder}",
        )
    proved = "each run is proved by itself" if baseline is not None else "the run is proved by itself"
    counts = (
        "positions count equally in both losses"
        if other_weights(proof, baseline) == ""
        else "it was not recorded whether both losses have the same scale"
    )
    reason = f"{apart.sentence}; {proved}, and {counts}: {found.reason}"
    unlike = _drawn_unlike(case, proof, baseline)
    alike = alike_beside(case.run, proof, baseline)
    if found.verdict != "undecided" and (alike or unlike):
        return alike or Decision(
            "undecided",
            "none",
            f"{apart.sentence}; {unlike}: the records do not show whether this is intended",
            _SEED,
        )
    if found.verdict == "undecided" or apart.certain:
        return replace(found, reason=reason)
    return Decision("undecided", "none", reason, case.decide)


def _drawn_unlike(case: Case, proof: LocalProof, baseline: LocalProof | None) -> str:
    """Return in words by which rule, other than chance, the runs draw other random numbers; "" where none is seen."""
    drawn = proof.draws.alike()
    if drawn and baseline is not None and not baseline.draws.alike():
        return f"{drawn[0].words}, and the baseline's draw apart"
    return "" if case.baseline is None else generators_apart(case.run, case.baseline, case.goes_on)
