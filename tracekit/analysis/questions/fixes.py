"""Fixes as a user writes them, `rank=5,stage=3,axis=tp,op=all_gather`: the things to make typical."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from tracekit.errors import UsageError
from tracekit.text import whole_number
from tracekit.thresholds.ingest import MAX_RANKS

KEYS: Final = ("rank", "stage", "axis", "op")
"""Kinds of fixes: one rank, one pipeline stage, all transfers of an axis, all operations of a type."""
NUMBERED: Final = ("rank", "stage")
"""Keys with numbers as values."""


@dataclass(frozen=True)
class Fix:
    """One thing to make typical: a `key` of KEYS, and its value."""

    key: str
    value: str

    @property
    def name(self) -> str:
        """The fix in its written form."""
        return f"{self.key}={self.value}"


def parse_fixes(texts: Sequence[str]) -> tuple[Fix, ...]:
    """Return the fixes that `texts` name, in the order written, each once; a text may join several by commas.

    Raises UsageError where a part is not `key=value`, its key is unknown, or a rank or stage is not a number.
    """
    found: dict[Fix, None] = {}
    for text in texts:
        for part in text.split(","):
            found[_parsed(part, text)] = None
    return tuple(found)


def _parsed(part: str, text: str) -> Fix:
    key, equals, value = (piece.strip() for piece in part.partition("="))
    key = key.lower()
    if not equals or not value:
        raise UsageError(
            f"--fix: {part.strip()!r} in {text!r} is not key=value; write for example rank=5,axis=tp"
        )
    if key not in KEYS:
        raise UsageError(f"--fix: nothing is called {key!r}; the keys are {', '.join(KEYS)}")
    if key in NUMBERED:
        number = whole_number(value, MAX_RANKS)
        if number is None:
            raise UsageError(
                f"--fix: {key} must be a number up to {MAX_RANKS}, as in {key}=3; got {value[:40]!r}"
            )
        value = str(number)
    return Fix(key, value)


# The interface of all engines that price fixes, and their result.


@dataclass(frozen=True)
class Saved:
    """The saving of a step, ns; negative where typical is longer than recorded.

    likely: operations with an unknown wait take what is usual of their message, if others show that. low: they keep
    their recorded length. high: they may shrink to the shortest of their message.
    """

    likely: float
    low: float
    high: float


class Engine(Protocol):
    """Prices fixes on one opened case."""

    @property
    def base_ns(self) -> float:
        """Return the recorded step as the model computes it, ns: savings are subtracted from it."""

    def known(self, key: str) -> tuple[str, ...]:
        """The values that `key` can have in this run."""

    def refusal(self, fix: Fix) -> str | None:
        """The reason that a known value cannot be made typical here; None where it can."""

    def meaning(self, fix: Fix) -> str:
        """The change by `fix`, as a clause."""

    def ranks_of(self, fixes: Sequence[Fix]) -> tuple[int, ...]:
        """Return the ranks with own work that `fixes` change."""

    def saved(self, fixes: Sequence[Fix]) -> Saved:
        """The saving of all `fixes` together."""

    def saved_by_all(self) -> Saved:
        """The saving if every rank, stage and transfer is typical: the loss behind S of the OSDI'25 paper."""

    def worst(self) -> tuple[int, ...]:
        """The worst ranks, as many as M_W of the OSDI'25 paper takes; empty where ranks have no peers."""
