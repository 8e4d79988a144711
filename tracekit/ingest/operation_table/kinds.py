"""The collective, axis, direction and stream of an operation type, from its name."""

from dataclasses import dataclass

COLLECTIVES = (
    ("all-gather", "allgather"),
    ("reduce-scatter", "reduce_scatter"),
    ("all-reduce", "allreduce"),
    ("all-to-all", "alltoall"),
    ("broadcast", "broadcast"),
)
"""(part of an operation type's name, its collective)."""
COMPUTATIONS = frozenset(
    {"forward-compute", "backward-compute", "optimizer", "optimizer-clip-main-grad", "gc"}
)
"""Operation types of the published tables that are no communication."""
COMPUTE_STREAM, DP_STREAM, FORWARD_STREAM, BACKWARD_STREAM = 0, 1, 2, 3


@dataclass(frozen=True)
class OperationKind:
    """The event fields that all operations of one type share.

    axis: "dp", "pp", "tp" or "embedding"; None for compute. toward: of send and receive, +1 down the pipeline
    (activations) or -1 up (gradients); 0 of all others.
    """

    name: str
    collective: str | None = None
    axis: str | None = None
    toward: int = 0
    stream: int = COMPUTE_STREAM

    @property
    def channel(self) -> str:
        """Name that the sends and receives of one direction share; of other operations their own name."""
        return self.name.rsplit("-", 1)[0] + "-p2p" if self.toward else self.name


def kind_of(optype: str) -> OperationKind:
    """Return the collective, axis, direction and stream of an operation type, from its name."""
    direction = 1 if optype.startswith("forward") else -1
    for end in ("send", "recv"):
        if optype.endswith("-" + end):
            stream = FORWARD_STREAM if direction > 0 else BACKWARD_STREAM
            return OperationKind(optype, end, "pp", direction, stream)
    for words, collective in COLLECTIVES:
        if words in optype:
            axis = "embedding" if "embedding" in optype else "tp" if "layernorm" in optype else "dp"
            return OperationKind(optype, collective, axis, stream=DP_STREAM)
    return OperationKind(optype)
