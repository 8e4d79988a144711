"""The collective, axis, direction and stream in the name of an operation type."""

from dataclasses import dataclass

from tracekit.axes import DATA, PIPELINE, TENSOR

COLLECTIVES = (
    ("all-gather", "allgather"),
    ("reduce-scatter", "reduce_scatter"),
    ("all-reduce", "allreduce"),
    ("all-to-all", "alltoall"),
    ("broadcast", "broadcast"),
)
"""A part of an operation type's name, and its collective."""
COMPUTATIONS = frozenset(
    {"forward-compute", "backward-compute", "optimizer", "optimizer-clip-main-grad", "gc"}
)
"""Operation types of the published tables that are not communication."""
EMBEDDING = "embedding"
"""In place of an axis: the group of the first and the last stage, which share an embedding."""
COMPUTE_STREAM, DP_STREAM, FORWARD_STREAM, BACKWARD_STREAM = 0, 1, 2, 3


@dataclass(frozen=True)
class OperationKind:
    """The event fields that all operations of one type share.

    axis: that of the group, or EMBEDDING; None for compute. toward: of send and receive, +1 down the pipeline
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
    """Return the collective, axis and direction in the name of an operation type."""
    direction = 1 if optype.startswith("forward") else -1
    for end in ("send", "recv"):
        if optype.endswith("-" + end):
            stream = FORWARD_STREAM if direction > 0 else BACKWARD_STREAM
            return OperationKind(optype, end, PIPELINE, direction, stream)
    for words, collective in COLLECTIVES:
        if words in optype:
            axis = EMBEDDING if EMBEDDING in optype else TENSOR if "layernorm" in optype else DATA
            return OperationKind(optype, collective, axis, stream=DP_STREAM)
    return OperationKind(optype)
