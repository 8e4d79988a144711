"""Rows that hold some elements of a rank's own tensor: an optimiser that steps shares of flat copies leaves them."""

from collections.abc import Sequence

from numerics.columns import Columns
from numerics.schema import parse_boxes, parse_shape


def is_share(run: Columns, row: int) -> bool:
    """Return whether a row holds some elements of a rank's own parameter, of its gradient or of its moments."""
    boxes = parse_boxes(run.name("boxes", row) or "")
    of_batch = run["micro_batch"][row] >= 0
    whole = parse_shape(run.name("global_shape", row))
    return bool(boxes) and not of_batch and [box.sizes for box in boxes] != [whole]


def by_model_rank(run: Columns, rows: Sequence[int]) -> list[list[int]]:
    """Return, for each rank of the model in order, the row of its plain tensor on the first data-parallel index.

    Where these are shares, the rows of all data-parallel indices are returned: together they hold the tensor.
    """
    first = min((int(run["dp"][row]) for row in rows), default=0)
    ranks: dict[str, list[int]] = {}
    for row in sorted(rows, key=lambda row: tuple(int(run[c][row]) for c in ("pp", "cp", "tp", "rank"))):
        ranks.setdefault(run.name("partial", row).partition(",")[0], []).append(row)
    found = []
    for own in ranks.values():
        if any(is_share(run, row) for row in own):
            found.append(own)
        else:
            found += [[row] for row in own if int(run["dp"][row]) == first]
    return found
