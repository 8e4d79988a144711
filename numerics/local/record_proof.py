"""What a run's records prove without its model: its sums over ranks, its gradients' sums, and its optimiser's steps.

What goes into these was recorded as well as what came out. What the modules compute is in no record: see `proof`.
"""

from collections.abc import Callable
from typing import Final

import torch
from torch import nn

from numerics.columns import Columns
from numerics.local.bounds.bounded import known
from numerics.local.gradients.collective_sums import check_collectives
from numerics.local.gradients.gradient_checks import Reduced, check_copies, check_gradients
from numerics.local.gradients.parameter_gradients import Sum
from numerics.local.judgement import Standing
from numerics.local.local_check import Doubt, LocalCheck
from numerics.local.proof import LocalProof
from numerics.local.read_sequences import same_sequences_doubts
from numerics.local.recorded_step import Place, RecordedStep
from numerics.local.records.recorded import RecordedRun
from numerics.local.updates.changed_between import changed_weights_doubts, left_buffers_doubts
from numerics.local.updates.learning_rates import check_rates
from numerics.local.updates.optimizer_step import Named
from numerics.local.updates.update_checks import check_update
from numerics.schema import parse_shape

MODULES: Final = "what the modules compute: --model gave no model"
"""The part of a run that no record shows."""

_PARTLY: Final = (
    "gradients that only some backwards add to: what the others add was not recorded, or is nothing"
)


def prove_records(run: Columns, progress: Callable[[str], None] | None = None) -> LocalProof | None:
    """Return what the records of a captured run prove; None where these hold no values or no whole parameters."""
    recorded = RecordedRun(run)
    model = Named(_parameters(recorded))
    if not recorded.steps or not run.capture.values or not dict(model.named_parameters()):
        return None
    torch.set_num_threads(max(int(run.capture.environment.get("threads") or 1), 1))
    reduced = Reduced()
    checks: list[LocalCheck] = []
    for step in recorded.steps:
        if progress is not None:
            progress(f"step {step} of {recorded.steps[-1]}")
        state = RecordedStep(recorded, model, step)
        checks += [
            LocalCheck(step, None, c, rows) for c, rows in check_collectives(recorded, step, reduced.learned)
        ]
        checks += check_copies(state)
        checks += _reduced(state, reduced)
        checks += check_update(state, None, reduced.unseen, declares=False)
    rates = check_rates(recorded, None)
    own, doubts = _of_their_own(checks)
    return LocalProof(
        tuple(one for one in checks if one not in own),
        reduced.scales,
        tuple(sorted({*reduced.unseen, MODULES})),
        reduced.learned.said,
        recorded.steps[0],
        doubts=(
            *doubts,
            *same_sequences_doubts(recorded),
            *rates.doubts,
            *changed_weights_doubts(run),
            *left_buffers_doubts(run),
        ),
        remarks=(*reduced.remarks, *(f"learning rates: {text}" for text in rates.remarks)),
        of_modules=False,
    )


def _of_their_own(checks: list[LocalCheck]) -> tuple[list[LocalCheck], tuple[Doubt, ...]]:
    """Return gradients that are a factor of their own times their sum, and doubts of them.

    Trainers may scale one gradient by what they like, and no model says whether they do.
    """
    own = [
        one
        for one in checks
        if one.check.phase == "reduce"
        and not one.rows
        and one.check.judged.standing == Standing.BEYOND
        and one.check.judged.factors is not None
    ]
    remarks = [
        f"{one.check.tensor} is {one.check.judged.ratio:.6g} times what the other gradients are"
        for one in own
    ]
    settled = "name the model (--model FILE.py:FUNCTION): its loss shows whether that is intended"
    return own, tuple(Doubt(f"{text} times their sums", settled) for text in remarks[:1])


def _parameters(recorded: RecordedRun) -> dict[str, nn.Parameter]:
    """Return the parameters that ranks hold whole or in known parts, without storage, by name."""
    run, found, loose = recorded.run, {}, set()
    for row in run.named("kind", "param").nonzero()[0].tolist():
        name = run.name("tensor", row)
        if recorded.unplaced(row):
            loose.add(name)
        elif name not in found:
            shape = torch.empty(parse_shape(run.name("global_shape", row)), device="meta")
            found[name] = nn.Parameter(shape, requires_grad=False)
    return {name: p for name, p in found.items() if name not in loose}


def _reduced(state: RecordedStep, into: Reduced) -> list[LocalCheck]:
    """Check the gradients that the optimiser saw against the sums of what the backwards added."""
    if state.parts > 1:
        into.unseen.add(
            "the sums of gradients: several ranks share a data-parallel index, and what they add is apart"
        )
        return []
    places = state.recorded.places(state.step)
    sums: dict[str, Sum] = {}
    for name, p in state.model.named_parameters():
        added = {place: _added(state, place, f"{name}.grad", tuple(p.shape)) for place in places}
        known_at = sum(value is not None for value in added.values())
        if known_at < len(added):
            into.unseen |= {_PARTLY} if known_at else set()
            continue
        total = sums[name] = Sum()
        for place, value in added.items():
            if value is not None:
                total.add(place, value, known(value))
    if not sums:
        into.unseen.add("the sums of gradients: what the backwards added was not recorded")
        return []
    return check_gradients(state, sums, into)


def _added(state: RecordedStep, place: Place, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
    """Return what a place's one backward added to a gradient; None where it was not recorded, or there were several."""
    rows = state.recorded.rows(state.step, "backward", "param_grad_local", name)
    if state.recorded.calls(rows, place) != 1:
        return None
    readings = state.added_gradient(place, name, shape)
    return readings[0].tensor if readings else None
