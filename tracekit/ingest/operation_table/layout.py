"""The mesh of a job from the rank numbers in its operation table, also if the table holds only some of its ranks.

Tables often record one rank of each tensor group, so rank numbers are further apart than places in the table. The
strides of the rank numbers along `dp_rank` and `stage` give the sizes of the axes inside.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tracekit.axes import AXES, CONTEXT, DATA, PIPELINE, TENSOR
from tracekit.thresholds.ingest import MAX_RANKS

Place = tuple[int, int]
"""(dp_rank, stage)."""


@dataclass(frozen=True)
class Layout:
    """Axes of the whole job from inner to outer, with their sizes and the strides of the rank numbers.

    origin: the rank at the first place of both axes, as it was recorded: its index on the tensor axis.
    """

    order: tuple[str, ...]
    sizes: dict[str, int]
    strides: dict[str, int]
    origin: int

    @property
    def world_size(self) -> int:
        """Ranks of the job, recorded or not."""
        return prod(self.sizes.values())

    def rank(self, place: Place) -> int:
        """Return the rank at `place` that has the origin's index on the tensor axis, recorded or not."""
        dp, stage = place
        return self.origin + dp * self.strides[DATA] + stage * self.strides[PIPELINE]

    @property
    def hint(self) -> dict[str, Any]:
        """The layout as `FileResult.mesh_hint` holds it."""
        return {"order": list(self.order), "sizes": dict(self.sizes)}


def layout_of(rank_at: Mapping[Place, int], dp_size: int, pp_size: int) -> Layout | None:
    """Return the mesh in which every rank of `rank_at` has its number; None where the numbers have no strides.

    Ranks between those of neighbouring places count as the tensor axis, the innermost in every common numbering.
    """
    seen = {DATA: dp_size, PIPELINE: pp_size}
    known = _strides(rank_at)
    inner, outer = sorted(seen, key=lambda axis: known.get(axis, MAX_RANKS))  # dp first where neither decides
    width = known.get(inner, 1)
    span = known.get(outer, width * seen[inner])  # ranks of a block of the outer axis
    if width < 1 or span % width or span // width < seen[inner]:
        return None
    sizes = {TENSOR: width, CONTEXT: 1, inner: span // width, outer: seen[outer]}
    order = (*(a for a in AXES if a not in seen), inner, outer)
    layout = Layout(order, sizes, {inner: width, outer: span}, min(rank_at.values()) % width)
    if layout.world_size > MAX_RANKS or any(layout.rank(place) != rank for place, rank in rank_at.items()):
        return None
    return layout


def _strides(rank_at: Mapping[Place, int]) -> dict[str, int]:
    """Difference of rank numbers between neighbours along dp and pp, of the axes on which recorded places differ.

    The plane through the ranks is fitted by least squares; the caller checks that it meets every rank.
    """
    places = np.array(list(rank_at), np.float64)
    axes = [i for i in range(places.shape[1]) if np.ptp(places[:, i])]
    columns = np.column_stack([places[:, axes], np.ones(len(places))])
    fitted = np.linalg.lstsq(columns, np.array(list(rank_at.values()), np.float64), rcond=None)[0]
    return {(DATA, PIPELINE)[axis]: round(float(step)) for axis, step in zip(axes, fitted, strict=False)}
