"""The doubt about weights that a trainer changes between its updates: a projection, a limit, an average."""

from typing import Final

from numerics.columns import Columns
from numerics.local.local_check import Doubt
from numerics.local.records.changed_weights import changed_weights, intended, sentence_of

_SETTLED: Final = (
    "compare with a baseline that changes its weights in the same way (a projection, a limit, a new average); if "
    "averaged weights were put in for an evaluation, put the trained ones back"
)


def changed_weights_doubts(run: Columns) -> list[Doubt]:
    """Return a doubt where the trainer changes its weights between steps, on all ranks alike."""
    own = [pairs for _, pairs in sorted(changed_weights(run).items()) if intended(run, pairs)]
    return [Doubt(f"{sentence_of(run, own[0][0])}: the trainer changes it", _SETTLED)] if own else []
