"""Ranks that drop the same elements of a dropout layer's output, where one process would drop others for each.

Copies of a tensor must be dropped alike; parts of one, and sequences of their own, apart.
"""

from dataclasses import dataclass
from itertools import combinations

from numerics.local.draws.chance import certain
from numerics.local.draws.dropout_masks import Dropped, plausible
from numerics.local.recorded_step import Place, RecordedStep
from numerics.schema import parse_boxes
from numerics.thresholds.local import MASK_ELEMENTS


@dataclass(frozen=True)
class Alike:
    """Two ranks that drop or draw alike, in words, and the step of a forward in which they do.

    `dropped` is one of the two calls of a dropout layer; None where only states of generators show it. `axis` is "dp"
    for ranks with sequences of their own, None for ranks that hold parts of one tensor.
    """

    words: str
    step: int
    micro_batch: int
    ranks: tuple[int, ...]
    dropped: Dropped | None = None
    axis: str | None = None


def alike_parts(state: RecordedStep, place: Place, one: Dropped) -> Alike | None:
    """Return two ranks of a place that drop the same elements of their parts, beyond chance; None without."""
    recorded, run = state.recorded, state.recorded.run
    rows = recorded.of_place(recorded.rows(state.step, "forward", "activation", one.tensor), place, one.call)
    parts = {row: recorded.local(row) for row in rows if int(run["numel"][row]) < one.elements}
    pairs = len(parts) * (len(parts) - 1) // 2
    for a, b in combinations(parts, 2):
        first, second = parts[a], parts[b]
        placed = not (recorded.unplaced(a) or recorded.unplaced(b))
        same_place = placed and parse_boxes(run.name("boxes", a)) == parse_boxes(run.name("boxes", b))
        if first is None or second is None or len(first) != len(second) or same_place:
            continue
        kept = first[:MASK_ELEMENTS] != 0
        dropped = int((~kept).sum())
        if (
            plausible(dropped, len(kept), one.chance)
            and bool((kept == (second[:MASK_ELEMENTS] != 0)).all())
            and certain(len(kept), one.chance, pairs)
        ):
            ranks = int(run["rank"][a]), int(run["rank"][b])
            words = (
                f"ranks {ranks[0]} and {ranks[1]} drop the same elements of their own parts of {one.tensor} (step "
                f"{state.step}), where one process would drop others of each"
            )
            return Alike(words, state.step, place[1], ranks, one)
    return None
