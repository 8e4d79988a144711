"""Steps of a trainer that ran a backward and made no update: an overflow under a scaled loss, a guard, or a mistake."""

import numpy as np

from numerics.columns import Columns


def skipped_updates(run: Columns) -> dict[int, bool]:
    """Return the steps that skipped their update, each with whether all its gradients were finite.

    The last recorded step is left out: its record may end before the update.
    """
    backward = run.named("phase", "backward")
    updated = _steps(run, run.named("phase", "step")) - empty_updates(run)
    overflowed = _steps(run, backward & (run["non_finite"] > 0))
    return {step: step not in overflowed for step in trained_steps(run).tolist() if step not in updated}


def empty_updates(run: Columns) -> set[int]:
    """Return the steps in which an optimiser stepped the model's parameters, and none of them had a gradient."""
    stepped = _steps(run, run.named("phase", "step") & run.named("kind", "param"))
    return stepped - _steps(run, run.named("phase", "reduce") & run.named("kind", "param_grad"))


def trained_steps(run: Columns) -> np.ndarray:
    """Return the steps with a recorded backward, sorted, but for the last one."""
    return np.unique(run["step"][run.named("phase", "backward")])[:-1]


def _steps(run: Columns, chosen: np.ndarray) -> set[int]:
    return set(run["step"][chosen].tolist())
