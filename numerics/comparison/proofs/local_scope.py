"""What a local proof took as recorded or did not see: no verdict of it covers these."""

from collections.abc import Sequence

from numerics.columns import Columns
from numerics.comparison.broken_invariants.owners import left_unseen
from numerics.comparison.verdict import Decision
from numerics.findings import NOT_CHECKED
from numerics.local.forced_pass import ROOT
from numerics.local.proof import LocalProof
from numerics.thresholds.report import RANKS_IN_SENTENCE, STEPS_IN_SENTENCE

_LOSS = (
    "the loss: its gradient was taken as recorded (labels, masks, weights, and how it is averaged over tokens, "
    "micro-batches and ranks), for --model gave no loss function"
)

_AVERAGE = (
    "the average of losses: the model gives its loss, and what each micro-batch's backward starts from was taken as "
    "recorded (counts of tokens that differ by micro-batch or rank)"
)

_GIVEN = (
    "the data: the sequences of each step were taken as recorded, and no baseline says which they ought to be",
    "what it starts from (weights; optimiser state; random numbers): taken as recorded",
)
"""What a proof of a run alone takes as given, for there is no baseline to hold it against."""

_OF_TRAINING = ("gradients of parameters", "learning rates", "the optimiser's step")
"""Starts of what a proof did not see where there was nothing to see: nothing was trained."""


def not_checked(run: Columns, proof: LocalProof, *, alone: bool = False) -> tuple[str, ...]:
    """Return what the proof did not see or took as recorded, "what: why"; more of a run `alone`, without baseline."""
    return (*_not_checked(run, proof), *(_GIVEN if alone and proof.of_modules else ()))


def _not_checked(run: Columns, proof: LocalProof) -> tuple[str, ...]:
    """Return what a proof did not see or took as recorded, whatever it is held against."""
    if not proof.of_modules:
        return proof.unseen
    ends = [c.check.judged.elements == 1 for c in proof.checks if c.check.tensor == ROOT]
    places = {c.place for c in proof.checks if c.place is not None}
    within = (_AVERAGE,) if len(places) > 1 else ()
    if not bool(run.named("phase", "backward", "reduce", "step").any()):
        return tuple(text for text in proof.unseen if not text.startswith(_OF_TRAINING))
    loss = () if proof.loss_factors else within if any(ends) else (*_loss_scale(proof), _LOSS)
    return (*loss, *_scale(proof), *_unsent(run), *proof.unseen)


def _loss_scale(proof: LocalProof) -> tuple[str, ...]:
    """Return that nothing shows by what the gradients are to be scaled, unless they are those of a mean."""
    if proof.loss_scale == "1":
        return ()
    times = f" ({proof.loss_scale})" if proof.loss_scale else ""
    return (f"the loss scale{times}: what the loss is divided by was taken as recorded",)


def _scale(proof: LocalProof) -> list[str]:
    """Return how gradients are scaled compared with the given loss or a mean: the factor, or a clip."""
    found = []
    factors = sorted({factor for factor in proof.loss_factors.values() if factor != 1})
    if factors:
        found.append(
            f"the scale of the loss: the recorded one is {factors[0]:.6g} times that of the given function"
        )
    clips = {step: scale.factor for step, scale in sorted(proof.scales.items()) if scale.fitted}
    if clips and not proof.loss_scale:
        step, factor = next(iter(clips.items()))
        found.append(
            f"the factor of all gradients: {factor:.6g} in step {step} (a clip's, as a rule) was taken as recorded, "
            "for no record shows its limit"
        )
    return found


def scope_of(texts: Sequence[str]) -> str:
    """Return the end of a verdict's sentence: what texts of the form "what: why" are about, each once."""
    subjects = list(dict.fromkeys(text.partition(":")[0] for text in texts))
    return f"{NOT_CHECKED}{', '.join(subjects)}" if subjects else ""


def _unsent(run: Columns) -> list[str]:
    """Return that ranks stepped parameters for others, and in which steps no later start shows that these got them."""
    rows, _ = left_unseen(run)
    found: dict[int, set[str]] = {}
    for row in rows:
        found.setdefault(int(run["step"][row]), set()).add(run.name("tensor", row))
    if not found:
        return []
    listed = " and ".join(map(str, sorted(found)[:STEPS_IN_SENTENCE]))
    steps = f"step{'s' * (len(found) > 1)} {listed}" + (" and more" if len(found) > STEPS_IN_SENTENCE else "")
    text = f"some ranks stepped {len(set().union(*found.values()))} parameters for the others"
    return [f"copies after {steps}: {text}, and what these were sent is in no record (capture one step more)"]


def never_seen_sent(run: Columns) -> Decision | None:
    """Leave a case open in which some ranks stepped for others, and no start of a step shows that these got it."""
    rows, others = left_unseen(run)
    if not rows or others:
        return None
    ranks = sorted({int(run["rank"][row]) for row in rows})
    few = ", ".join(map(str, ranks[:RANKS_IN_SENTENCE])) + (", …" if len(ranks) > RANKS_IN_SENTENCE else "")
    return Decision(
        "undecided",
        "none",
        f"ranks {few} kept {run.name('tensor', rows[0])} as it was in step {int(run['step'][rows[0]])} while another "
        "rank updated it, and no later start of a step was recorded: it was sent after the recording, or never",
        "capture one step more: its start shows what every rank holds; then compare again",
    )
