"""The axes of parallel training, written once: every package and command reads their names and order here."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Axis:
    """What the rest of the program knows of an axis.

    name: as options, answers and columns write it. words: tokens in the descriptions of process groups that name it.
    extends: the axis over whose groups its ranks hold copies of the same parameters, if any: data-parallel groups run
    over both. divides_model: each of its ranks holds a part of every layer, or some of the layers.
    """

    name: str
    words: frozenset[str]
    extends: str | None = None
    divides_model: bool = False


TENSOR: Final = "tp"
CONTEXT: Final = "cp"
PIPELINE: Final = "pp"
DATA: Final = "dp"

TABLE: Final = (
    Axis(TENSOR, frozenset({"tp", "tensor"}), divides_model=True),
    Axis(CONTEXT, frozenset({"cp", "context"}), extends=DATA),
    Axis(PIPELINE, frozenset({"pp", "pipeline", "pipe"}), divides_model=True),
    Axis(DATA, frozenset({"dp", "data", "fsdp", "ddp", "replicate", "shard", "zero"})),
)
"""A row for each axis, in Llama 3's order, inner to outer ("The Llama 3 Herd of Models", section 3.3.2)."""

AXES: Final = tuple(axis.name for axis in TABLE)
"""The axes of the mesh, inner to outer: the product of their sizes is the number of ranks."""

DESCENT: Final = AXES[::-1]
"""The order in which a slow rank is looked for: DP → PP → CP → TP, outer to inner."""

ROLES: Final = ((TENSOR,), (TENSOR, CONTEXT))
"""Axes along which the first rank may work for all: data is read once a tensor group, or once for each batch."""


def with_extensions(axis: str) -> set[str]:
    """Return `axis` and the axes that extend it."""
    return {axis, *(row.name for row in TABLE if row.extends == axis)}


def crosses_replicas(axes: Iterable[str]) -> bool:
    """Whether a group along `axes` has members in several data-parallel replicas."""
    return DATA in axes


def along(label: str, axis: str) -> bool:
    """Whether the axes in a label, as in `cp_dp`, include `axis`."""
    return axis in label.split("_")
