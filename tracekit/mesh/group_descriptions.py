"""Axes named in the descriptions of process groups. They are hints only; membership decides.

Megatron writes `TENSOR_MODEL_PARALLEL_GROUP` or `DATA_PARALLEL_GROUP_WITH_CP`, torchtitan `mesh_tp` or
`mesh_dp_shard_cp`; many programs write nothing, `undefined` or `default_pg`.
"""

import re
from collections.abc import Iterable

from tracekit.axes import TABLE

_FOREIGN = frozenset(
    {
        "expert",
        "ep",
        "etp",
        "edp",
        "efsdp",
        "moe",
        "embedding",
        "embd",
        "embed",
        "position",
        "amax",
        "replicas",
    }
)
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
    dims = frozenset(axis.name for axis in TABLE if tokens & axis.words)
    if not dims and {"model", "parallel"} <= tokens:
        return frozenset(axis.name for axis in TABLE if axis.divides_model)
    return dims


def is_foreign(descriptions: Iterable[str]) -> bool:
    """Whether the group belongs only to something beside the four axes, as experts, tied embeddings or replicas do."""
    texts = [set(_TOKEN.findall(text.lower())) for text in descriptions]
    return bool(texts) and all(tokens & _FOREIGN for tokens in texts)
