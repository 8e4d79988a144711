"""Phrases that the sentences of several verdicts share."""

from collections.abc import Sequence

from tracekit.thresholds.slowrank import RANKS_LISTED


def listed(values: Sequence[object]) -> str:
    """Return the first few of `values`, and their number if there are more."""
    shown = ", ".join(map(str, values[:RANKS_LISTED]))
    return shown + (f", … ({len(values)} in all)" if len(values) > RANKS_LISTED else "")


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return `rank 5`, or `ranks 5, 6`, as `listed`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {listed(ranks)}"


def add_traces(ranks: Sequence[int]) -> str:
    """Return the advice on ranks without a trace."""
    return f"add the trace{'' if len(ranks) == 1 else 's'} of {ranks_in_words(ranks)}"
