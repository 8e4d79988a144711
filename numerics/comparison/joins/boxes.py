"""Whether boxes cover a global tensor, from the texts of the capture."""

from functools import lru_cache

import numpy as np

from numerics.schema import Box, parse_boxes, parse_shape, whole
from numerics.thresholds.reading import MAX_CELLS
from tracekit.errors import InputError


@lru_cache(maxsize=1 << 16)
def is_whole(shape: str, boxes: str) -> bool:
    """Return whether the one box is the whole tensor. InputError if the shape is invalid."""
    try:
        return boxes == ",".join(f"0+{n}" for n in parse_shape(shape))
    except ValueError as error:
        raise InputError(f"damaged rows in the capture ({error}); capture the run again") from error


@lru_cache(maxsize=4096)
def covers(shape_text: str, box_texts: tuple[str, ...]) -> bool:
    """Return whether the boxes cover a tensor of this shape exactly once. InputError where they are no boxes of it."""
    try:
        shape = parse_shape(shape_text)
        boxes = [
            box for text in box_texts for box in (parse_boxes(text) if text or shape else (Box((), ()),))
        ]
    except ValueError as error:
        raise InputError(f"damaged rows in the capture ({error}); capture the run again") from error
    if any(len(box.sizes) != len(shape) for box in boxes):
        raise InputError("damaged rows in the capture (boxes of other dimensions); capture the run again")
    size = whole(shape)[0].numel
    boxes = [box for box in boxes if box.numel]
    if sum(box.numel for box in boxes) != size or not boxes:
        return size == 0
    return _tile(shape, boxes)


def _tile(shape: tuple[int, ...], boxes: list[Box]) -> bool:
    """Return whether boxes of the right total size lie within the shape without overlap.

    The grid has a line wherever a box begins or ends, so that every box consists of whole cells.
    """
    cuts = [
        sorted({0, extent, *(b.offsets[d] for b in boxes), *(b.offsets[d] + b.sizes[d] for b in boxes)})
        for d, extent in enumerate(shape)
    ]
    cells = [len(cut) - 1 for cut in cuts]
    outside = any(cut[-1] > extent for cut, extent in zip(cuts, shape, strict=True))
    if outside or np.prod(np.array(cells, np.float64)) > MAX_CELLS:
        return False
    place = [{at: number for number, at in enumerate(cut)} for cut in cuts]
    painted = np.zeros(cells, np.int16)
    for box in boxes:
        corner = zip(place, box.offsets, box.sizes, strict=True)
        painted[tuple(slice(at[o], at[o + n]) for at, o, n in corner)] += 1
    return bool((painted == 1).all())
