"""Axes named in the descriptions of process groups. They are hints only; membership decides.

Megatron writes `TENSOR_MODEL_PARALLEL_GROUP` or `DATA_PARALLEL_GROUP_WITH_CP`, torchtitan `mesh_tp` or
`mesh_dp_shard_cp`; many programs write nothing, `undefined` or `default_pg`.
"""

import re
from collections.abc import Iterable

from tracekit.axes import AXES, PARTS, TABLE

_COPIES = frozenset({"edp", "efsdp"})
_OF_PARTS = (_COPIES | {"etp"}).union(*(part.words for part in PARTS.values()))
"""Tokens of groups of an axis inside another, of its copies, and of tensor parallelism inside an expert."""
_FOREIGN = _OF_PARTS | {"embedding", "embd", "embed", "position", "amax", "replicas"}
_TOKEN = re.compile(r"[a-z]+")


def hinted_dims(descriptions: Iterable[str]) -> frozenset[str]:
    """Return the axes that the descriptions mention; empty where they say nothing.

    `TENSOR_MODEL_PARALLEL_GROUP` → {tp}; `mesh_dp_shard_cp` → {dp, cp}; `MODEL_PARALLEL_GROUP` → {tp, pp}.
    """
    found = [dims for text in descriptions if (dims := _mentioned(text))]
    if not found:
        return frozenset()
    least = min(
        len(dims) for dims in found
    )  # with cp = 1 a group is both the dp and the dp×cp group: the plain name tells
    return frozenset().union(*(dims for dims in found if len(dims) == least))


def _mentioned(text: str) -> frozenset[str]:
    tokens = set(_TOKEN.findall(text.lower()))
    if tokens & _FOREIGN:
        return frozenset()
    dims = frozenset(axis.name for axis in TABLE if axis.name in AXES and tokens & axis.words)
    if not dims and {"model", "parallel"} <= tokens:
        return frozenset(axis.name for axis in TABLE if axis.divides_model)
    return dims


def hinted_part(descriptions: Iterable[str]) -> str | None:
    """Return the axis inside another along which a group lies by its descriptions; None where they say nothing of one.

    `EXPERT_MODEL_PARALLEL_GROUP` and `mesh_dp_shard_in_ep` → ep; not `EXPERT_DATA_PARALLEL_GROUP`, whose ranks hold the
    same experts, nor `EXPERT_TENSOR_PARALLEL_GROUP`, whose ranks share one.
    """
    for text in descriptions:
        tokens = set(_TOKEN.findall(text.lower()))
        for name, part in PARTS.items():
            beside = {axis.name for axis in TABLE if axis.name != name and tokens & axis.words}
            if tokens & part.words and (not beside or (beside == {part.inside} and "in" in tokens)):
                return name
    return None


def is_copies(descriptions: Iterable[str]) -> bool:
    """Whether ranks of a group hold the same part of an axis inside another, as `EXPERT_DATA_PARALLEL_GROUP` says."""
    texts = [set(_TOKEN.findall(text.lower())) for text in descriptions]
    parts = [(part.words, row.words) for part in PARTS.values() for row in TABLE if row.name == part.inside]
    return any(
        tokens & _COPIES
        or any(tokens & words and tokens & data and "in" not in tokens for words, data in parts)
        for tokens in texts
        if not any(tokens & row.words for row in TABLE if row.divides_model)
    )


def mentions_part(descriptions: Iterable[str]) -> bool:
    """Whether all descriptions of a group, and there are some, are of an axis inside another or of its copies."""
    texts = [set(_TOKEN.findall(text.lower())) for text in descriptions]
    return bool(texts) and all(tokens & _OF_PARTS for tokens in texts)


def is_foreign(descriptions: Iterable[str]) -> bool:
    """Whether the group belongs only to experts, tied embeddings, replicas or the like, and to no axis of the order."""
    texts = [set(_TOKEN.findall(text.lower())) for text in descriptions]
    return bool(texts) and all(tokens & _FOREIGN for tokens in texts)
