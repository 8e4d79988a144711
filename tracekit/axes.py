"""The axes of parallel training, written once: every package and command reads their names and order here."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Axis:
    """What the rest of the program knows of an axis.

    name: as options, answers and columns write it. words: tokens in the descriptions of process groups that name it.
    extends: the axis over whose groups its ranks hold copies of the same parameters, if any: data-parallel groups run
    over both. divides_model: each of its ranks holds a part of every layer, or some of the layers. inside: the axis
    whose ranks it divides; None for an axis of the mesh, of which the product of sizes is the number of ranks. copies:
    the name of groups of ranks that hold the same part, of an axis inside another. deals_tokens: its all-to-alls bring
    ranks as many tokens as the router wants.
    """

    name: str
    words: frozenset[str]
    extends: str | None = None
    divides_model: bool = False
    inside: str | None = None
    copies: str | None = None
    deals_tokens: bool = False


TENSOR: Final = "tp"
CONTEXT: Final = "cp"
PIPELINE: Final = "pp"
DATA: Final = "dp"

TABLE: Final = (
    Axis(TENSOR, frozenset({"tp", "tensor"}), divides_model=True),
    Axis(CONTEXT, frozenset({"cp", "context"}), extends=DATA),
    Axis(PIPELINE, frozenset({"pp", "pipeline", "pipe"}), divides_model=True),
    Axis(DATA, frozenset({"dp", "data", "fsdp", "ddp", "replicate", "shard", "zero"})),
    Axis("ep", frozenset({"ep", "expert", "experts", "moe"}), inside=DATA, copies="edp", deals_tokens=True),
)
"""A row for each axis, in Llama 3's order, inner to outer ("The Llama 3 Herd of Models", section 3.3.2).

Experts are spread over ranks that work on different data and hold the same dense layers (Megatron's
EXPERT_MODEL_PARALLEL_GROUP, torchtitan's `ep`, DeepSpeed's `ep_size`): `ep` divides the ranks of `dp`, dp = edp × ep.
"""

AXES: Final = tuple(axis.name for axis in TABLE if axis.inside is None)
"""The axes of the mesh, inner to outer: the product of their sizes is the number of ranks."""

PARTS: Final = {axis.name: axis for axis in TABLE if axis.inside is not None}
"""The axes that divide the ranks of another one, by name."""

DESCENT: Final = AXES[::-1]
"""The order in which a slow rank is looked for: DP → PP → CP → TP, outer to inner."""

LEVELS: Final = tuple(
    name
    for axis in DESCENT
    for name in (axis, *(part.name for part in PARTS.values() if part.inside == axis))
)
"""The same with the axes inside others, each behind the one that it divides: DP → EP → PP → CP → TP."""

ROLES: Final = ((TENSOR,), (TENSOR, CONTEXT))
"""Axes along which the first rank may work for all: data is read once a tensor group, or once for each batch."""

SAME_TOKENS: Final = (TENSOR,)
"""Axes along which ranks compute parts of the same tokens, so that no data make one work longer than another."""

PIECES: Final = (CONTEXT,)
"""Axes along which ranks hold pieces of one sequence, so that causal attention is uneven by design."""


def with_extensions(axis: str) -> set[str]:
    """Return `axis` and the axes that extend it."""
    return {axis, *(row.name for row in TABLE if row.extends == axis)}


def crosses_replicas(axes: Iterable[str]) -> bool:
    """Whether a group along `axes` has members in several data-parallel replicas."""
    inside = {name for part in PARTS.values() if part.inside == DATA for name in (part.name, part.copies)}
    return any(axis == DATA or axis in inside for axis in axes)


def along(label: str, axis: str) -> bool:
    """Whether the axes in a label, as in `cp_dp`, include `axis`."""
    return axis in label.split("_")
