"""Whether ranks that hold different parts of a dropout layer's output drop the same elements of their own parts.

Copies of a tensor must be dropped alike; parts of one ought to be dropped apart, as one process would do it.
"""

from itertools import combinations

from numerics.local.draws.chance import certain
from numerics.local.draws.dropout_masks import Dropped, plausible
from numerics.local.recorded_step import Place, RecordedStep
from numerics.schema import parse_boxes
from numerics.thresholds.local import MASK_ELEMENTS


def alike_parts(state: RecordedStep, place: Place, one: Dropped) -> str:
    """Return in words that two ranks of a place drop the same elements of their parts, beyond chance; else ""."""
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
            ranks = f"ranks {int(run['rank'][a])} and {int(run['rank'][b])}"
            return f"{ranks} drop the same elements of their own parts of {one.tensor} (step {state.step})"
    return ""
