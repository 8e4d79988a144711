"""The interface of all engines that price fixes, and their result."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tracekit.analysis.questions.fixes import Fix


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
