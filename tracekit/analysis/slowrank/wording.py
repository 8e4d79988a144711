"""Words that sentences of several verdicts share."""

from collections.abc import Sequence

from tracekit.thresholds import RANKS_LISTED


def listed(numbers: Sequence[int]) -> str:
    """The first few of `numbers`, and how many there are in all if that is more."""
    shown = ", ".join(map(str, numbers[:RANKS_LISTED]))
    return shown + (f", … ({len(numbers)} in all)" if len(numbers) > RANKS_LISTED else "")
