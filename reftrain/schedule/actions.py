"""The words a schedule is written in: actions of a rank, and the table of all ranks.

A generator (`generators`) writes forward and backward actions; `lower` adds the messages and gradient
reductions; `check` proves that the table can run; `parallel.pipeline` executes it.
"""

import enum
from dataclasses import dataclass


class Kind(enum.StrEnum):
    """What an action does, with its letters in the text form."""

    FORWARD = "F"
    BACKWARD = "B"
    SEND_ACTIVATION = "SA"
    RECV_ACTIVATION = "RA"
    SEND_GRADIENT = "SG"
    RECV_GRADIENT = "RG"
    REDUCE_GRADIENT = "R"


COMPUTE = frozenset({Kind.FORWARD, Kind.BACKWARD})
SENDS = frozenset({Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT})
RECEIVES = frozenset({Kind.RECV_ACTIVATION, Kind.RECV_GRADIENT})


@dataclass(frozen=True, order=True)
class Action:
    """One step of a rank: `F2.5` is the forward of micro-batch 5 on virtual stage 2.

    A send or receive carries the stage of the rank that executes it: `SA0.5` sends what stage 0 made of
    micro-batch 5, `RA1.5` receives it for stage 1. `REDUCE_GRADIENT` reduces the gradients of a stage over
    data parallelism; its micro-batch is the last one whose gradient it contains.
    """

    kind: Kind
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.micro_batch}"


@dataclass(frozen=True)
class Schedule:
    """Actions of every pipeline rank in the order of execution.

    `placement[s]` is the rank that holds virtual stage s; `consecutive` is k, the number of micro-batches
    that run consecutively on a virtual stage before the next one has its turn.
    """

    name: str
    micro_batches: int
    consecutive: int
    placement: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]

    @property
    def stages(self) -> int:
        """Number of virtual stages."""
        return len(self.placement)

    @property
    def ranks(self) -> int:
        """Number of pipeline ranks."""
        return len(self.actions)

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Virtual stages that a rank holds, in ascending order."""
        return tuple(s for s, owner in enumerate(self.placement) if owner == rank)
