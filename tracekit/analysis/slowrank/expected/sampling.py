"""A sample of ranks: reading the events of a rank takes time, and a median needs few."""

from collections.abc import Sequence
from typing import TypeVar

from tracekit.thresholds.slowrank import PEERS_SAMPLED
from tracekit.units import I64

_Rows = TypeVar("_Rows", Sequence[int], list[int], I64)


def sampled(rows: _Rows) -> _Rows:
    """Return at most PEERS_SAMPLED of `rows`, evenly spread over them."""
    return rows[:: max(1, len(rows) // PEERS_SAMPLED)][:PEERS_SAMPLED]
