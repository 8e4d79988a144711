"""Steps of a trainer that ran a backward and made no update: an overflow under a scaled loss, a guard, or a mistake."""

import numpy as np

from numerics.columns import Columns


def skipped_updates(run: Columns) -> dict[int, bool]:
    """Return the steps that skipped their update, each with whether all its gradients were finite.

    The last recorded step is left out: its record may end before the update.
    """
    going_back = run.named("phase", "backward")
    updated = set(run["step"][run.named("phase", "step")].tolist())
    steps = sorted(set(run["step"][going_back].tolist()))
    overflowed = set(run["step"][going_back & (run["non_finite"] > 0)].tolist())
    return {step: step not in overflowed for step in steps[:-1] if step not in updated}


def trained_steps(run: Columns) -> np.ndarray:
    """Return the steps with a recorded backward, sorted, but for the last one."""
    return np.unique(run["step"][run.named("phase", "backward")])[:-1]
