"""Words that sentences of several verdicts share."""

from collections.abc import Sequence

from tracekit.thresholds.slowrank import RANKS_LISTED


def listed(values: Sequence[object]) -> str:
    """The first few of `values`, and how many there are in all if that is more."""
    shown = ", ".join(map(str, values[:RANKS_LISTED]))
    return shown + (f", … ({len(values)} in all)" if len(values) > RANKS_LISTED else "")
