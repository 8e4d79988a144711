"""Steps of a trainer that ran a backward and made no update: an overflow under a scaled loss, a guard, or a mistake."""

import numpy as np

from numerics.columns import Columns
from numerics.local.records.restored_steps import digests_by_step


def skipped_updates(run: Columns) -> dict[int, bool]:
    """Return the steps that skipped their update, each with whether all its gradients were finite.

    The last recorded step is left out: its record may end before the update.
    """
    overflowed = _steps(run, run.named("phase", "backward", "reduce") & (run["non_finite"] > 0))
    updated = _steps(run, run.named("phase", "step")) - empty_updates(run) - (_unchanged(run) & overflowed)
    return {step: step not in overflowed for step in trained_steps(run).tolist() if step not in updated}


def empty_updates(run: Columns) -> set[int]:
    """Return the steps in which an optimiser stepped the model's parameters, and none of them had a gradient."""
    stepped = _steps(run, run.named("phase", "step") & run.named("kind", "param"))
    return stepped - _steps(run, run.named("phase", "reduce") & run.named("kind", "param_grad"))


def _unchanged(run: Columns) -> set[int]:
    """Return the steps that end with the weights they began with, as of a fused optimiser that skips by itself."""
    parameters = run.named("kind", "param")
    starts = digests_by_step(run, parameters & run.named("phase", "init"))
    ends = digests_by_step(run, parameters & run.named("phase", "step"))
    return {step for step, end in ends.items() if end <= starts.get(step, frozenset())}


def trained_steps(run: Columns) -> np.ndarray:
    """Return the steps with a recorded backward, sorted, but for the last one."""
    return np.unique(run["step"][run.named("phase", "backward")])[:-1]


def _steps(run: Columns, chosen: np.ndarray) -> set[int]:
    return set(run["step"][chosen].tolist())
