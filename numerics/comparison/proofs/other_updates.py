"""Updates and gradients that are in one record alone: skipped by the other run, or made before this record began.

No order of sums skips one, but an overflow in one run may.
"""

from typing import Final

import numpy as np

from numerics.columns import Columns
from numerics.comparison.verdict import Case, Decision
from numerics.local.records.skipped_updates import skipped_updates, trained_steps

_SAME_SCALE: Final = (
    "let both runs begin with a loss scale that overflows in neither (`GradScaler(init_scale=...)`), or with the same "
    "number format, and compare again"
)
_SAME_START: Final = (
    "compare with a baseline that goes on from the same checkpoint, or that made it and recorded its steps"
)


def gradients_alone(case: Case) -> str | None:
    """Return a sentence where a parameter of both runs has a gradient, not only zeros, in one of them alone."""
    if case.baseline is None:
        return None
    mine, other = _with_gradient(case.run), _with_gradient(case.baseline)
    both = _parameters(case.run) & _parameters(case.baseline)
    alone = sorted((mine ^ other) & both) if mine and other else []
    if not alone:
        return None
    ends = ("the run's", "the baseline's") if alone[0] in mine else ("the baseline's", "the run's")
    more = f" (and of {len(alone) - 1} more)" if len(alone) > 1 else ""
    return (
        f"{ends[0]} optimiser gets a gradient of {alone[0]}{more}, and {ends[1]} gets none in any step: frozen, "
        "unused, or not reached by the backward"
    )


def _with_gradient(run: Columns) -> set[str]:
    """Return the parameters with a gradient, not only zeros, that reached an optimiser in some step."""
    rows = run.named("phase", "reduce") & run.named("kind", "param_grad") & ~(run.reals["sum_squares"] == 0)
    return {run.names.text(number).removesuffix(".grad") for number in set(run["tensor"][rows].tolist())}


def _parameters(run: Columns) -> set[str]:
    return {run.names.text(number) for number in set(run["tensor"][run.named("kind", "param")].tolist())}


def begun_apart(case: Case) -> Decision | None:
    """Return the open decision on a run that goes on from weights which its baseline never had; None otherwise."""
    if not case.begins or case.tensors is None:
        return None
    table, number = case.tensors, case.run.names.number
    weights = table.relative[(table.phase == number("init")) & (table.kind == number("param"))]
    size = float(np.nan_to_num(weights).max(initial=0.0))
    text = f"the run begins within the baseline: {case.begins}; these weights are up to {size:.2g} of their size apart"
    return Decision("undecided", "none", text, _SAME_START)


def other_updates(case: Case) -> Decision | None:
    """Return the decision where one of the runs skips an update that the other makes; None otherwise."""
    if case.baseline is None:
        return None
    skipped = [skipped_updates(side) for side in (case.run, case.baseline)]
    both = np.intersect1d(trained_steps(case.run), trained_steps(case.baseline))
    step = next((s for s in both.tolist() if (s in skipped[0]) != (s in skipped[1])), None)
    if step is None:
        return None
    alone = "the run" if step in skipped[0] else "the baseline"
    other = "the baseline" if step in skipped[0] else "the run"
    text = f"{alone} makes no update in step {step}, and {other} makes one"
    if all(sides.get(step, True) for sides in skipped):
        return Decision("bug", "local", f"{text}, though all gradients of that step are finite")
    return Decision(
        "undecided",
        "none",
        f"{text}: gradients of {alone} are not finite there, as under a loss scale",
        _SAME_SCALE,
    )
