"""Doubts about what a trainer changes between its updates: weights, and buffers that it leaves when it goes back."""

from collections.abc import Collection
from typing import Final

import numpy as np

from numerics.columns import Columns
from numerics.local.local_check import Doubt
from numerics.local.records.changed_weights import changed_weights, intended, sentence_of
from numerics.local.records.restored_steps import restored_steps
from numerics.schema import BUFFER
from numerics.thresholds.report import NAMES_IN_SENTENCE

_SETTLED: Final = (
    "compare with a baseline that changes its weights in the same way (a projection, a limit, a new average); if "
    "averaged weights were put in for an evaluation, put the trained ones back"
)


def changed_weights_doubts(run: Columns) -> list[Doubt]:
    """Return a doubt where the trainer changes its weights between steps, on all ranks alike."""
    own = [pairs for _, pairs in sorted(changed_weights(run).items()) if intended(run, pairs)]
    return [Doubt(f"{sentence_of(run, own[0][0])}: the trainer changes it", _SETTLED)] if own else []


_RESTORED: Final = (
    "restore the buffers together with the weights; where they are to go on, compare with a baseline that goes back in "
    "the same way"
)


def left_buffers_doubts(run: Columns, saved: Collection[str] | None = None) -> list[Doubt]:
    """Return a doubt where the trainer went back to earlier weights, and no rank's buffers of then came back.

    `saved` names what a checkpoint of the model holds; None: all buffers may be in it.
    """
    for step, earlier in sorted(restored_steps(run).items()):
        due, held = _buffers(run, earlier), _buffers(run, step)
        left = sorted(
            name
            for name in due.keys() & held.keys()
            if not held[name] <= due[name] and (saved is None or name in saved)
        )
        if left:
            names = ", ".join(left[:NAMES_IN_SENTENCE]) + (", …" if len(left) > NAMES_IN_SENTENCE else "")
            clause = f"step {step} starts from the weights that step {earlier} started from, but not from its buffers"
            return [Doubt(f"{clause} ({names})", _RESTORED)]
    return []


def _buffers(run: Columns, step: int) -> dict[str, set[int]]:
    """Return the digests of buffers before a step's first forward, of all ranks, by name."""
    names = [name for name in run.names.texts if name.startswith(BUFFER)]
    chosen = run.named("phase", "forward") & run.named("kind", "input") & run.named("tensor", *names)
    found: dict[str, set[int]] = {}
    for row in np.flatnonzero(chosen & (run["step"] == step) & (run["micro_batch"] <= 0)).tolist():
        found.setdefault(run.name("tensor", row).removeprefix(BUFFER), set()).add(int(run.digest[row]))
    return found
