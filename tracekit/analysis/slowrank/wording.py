"""Phrases that the sentences of several verdicts share."""

from collections.abc import Sequence

from tracekit.text import ranges
from tracekit.thresholds.slowrank import RANKS_LISTED


def listed(values: Sequence[object]) -> str:
    """Return the first few of `values`, and their number if there are more."""
    shown = ", ".join(map(str, values[:RANKS_LISTED]))
    return shown + (f", … ({len(values)} in all)" if len(values) > RANKS_LISTED else "")


def ranks_in_words(ranks: Sequence[int]) -> str:
    """Return `rank 5`, or `ranks 5, 6`, as `listed`."""
    return f"rank{'' if len(ranks) == 1 else 's'} {listed(ranks)}"


class Remedy(str):
    """A sentence that says what would decide; `ranks` are those whose traces to add, for programs."""

    __slots__ = ("ranks",)
    ranks: tuple[int, ...]


def add_traces(ranks: Sequence[int], why: str = "") -> Remedy:
    """Return what to do about ranks without a trace, and why these."""
    shown = ranges(sorted(ranks), RANKS_LISTED)
    more = f" ({len(ranks)} in all)" if shown.endswith("…") else ""
    many = "" if len(ranks) == 1 else "s"
    remedy = Remedy(f"add the trace{many} of rank{many} {shown}{more}{f': {why}' if why else ''}")
    remedy.ranks = tuple(sorted(ranks))
    return remedy
