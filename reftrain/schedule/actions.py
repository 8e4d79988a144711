"""The words a schedule is written in: actions of a rank, and the table of all ranks.

A scheme (`registry`) writes computations and optimiser steps; `lower` adds the messages and gradient reductions;
`check` proves that the table can run; `timing` says when each action runs; `execute.pipeline` executes it.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property


class Kind(enum.StrEnum):
    """The kinds of actions, with their letters in the text form."""

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    RECOMPUTE = "C"
    SEND_ACTIVATION = "SA"
    RECV_ACTIVATION = "RA"
    SEND_GRADIENT = "SG"
    RECV_GRADIENT = "RG"
    REDUCE_GRADIENT = "R"
    SYNC_REPLICAS = "Y"
    OPTIMIZER_STEP = "O"
    STASH_WEIGHTS = "V"
    USE_WEIGHTS = "U"
    DROP_WEIGHTS = "D"
    FREE = "X"
    ENCODE = "E"
    ENCODE_BACKWARD = "EB"
    SHARE_TOKENS = "T"
    GATHER_TOKENS = "G"


ENCODER = -1
"""Stage of the actions of an image encoder, which lies beside the pipeline."""
ENCODES = frozenset({Kind.ENCODE, Kind.ENCODE_BACKWARD})
COMPUTE = ENCODES | {
    Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.RECOMPUTE
}  # fmt: skip
"""Actions that take computing time of a rank."""
BACKWARDS = frozenset({Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.ENCODE_BACKWARD})
"""Backwards, whole or in part."""
PASSES_GRADIENT = frozenset({Kind.BACKWARD, Kind.BACKWARD_INPUT})
"""Backward parts with a result that the stage before needs."""
ENDS_BACKWARD = frozenset({Kind.BACKWARD, Kind.BACKWARD_WEIGHT, Kind.ENCODE_BACKWARD})
"""Backward parts after which a stage's gradient contains the micro-batch and its activations are gone."""
SENDS = frozenset({Kind.SEND_ACTIVATION, Kind.SEND_GRADIENT})
RECEIVES = frozenset({Kind.RECV_ACTIVATION, Kind.RECV_GRADIENT})


@dataclass(frozen=True, order=True)
class Action:
    """One step of a rank: `F2.5` is the forward of micro-batch 5 on virtual stage 2.

    A send or receive carries the stage of the rank that executes it: `SA0.5` sends the activation of micro-batch 5
    after stage 0, `RA1.5` receives it for stage 1. `replica` is the pipeline of a bidirectional schedule
    that the stage belongs to, written `F2.5@1` where it is not the first.

    - `B` is the whole backward; `I` its part for the stage's input, `W` the later part for its weights.
    - `X` frees the activations of the forward except the stage's input; `C` computes them again from the input, once
      the gradient for the backward has come (so that they are held no longer than needed).
    - `R` reduces the gradients of a stage over data parallelism, `Y` starts the sum over the replicas of the
      stage, `O` steps the optimiser once both have ended; their micro-batch is the last one with a
      gradient in them.
    - `E` encodes the images of a micro-batch and `EB` runs back through the encoder; `T` hands the image tokens of all
      micro-batches to all pipeline ranks, `G` sums their gradients for the ranks that encode. Their stage is -1. In a
      table without `T`, tokens and their gradients travel with the messages between stages.
    - `V` keeps the stage's present weights under the tag of its micro-batch, `U` makes the next computation
      of the stage use the weights of that tag, `D` drops them.
    """

    kind: Kind
    stage: int
    micro_batch: int
    replica: int = 0

    def __str__(self) -> str:
        return f"{self.kind}{self.stage}.{self.micro_batch}" + (f"@{self.replica}" if self.replica else "")

    def of(self, kind: Kind, stage_offset: int = 0) -> "Action":
        """Another kind of action for the same micro-batch and replica, of this stage or a neighbour."""
        return Action(kind, self.stage + stage_offset, self.micro_batch, self.replica)


@dataclass(frozen=True)
class Schedule:
    """Actions of every pipeline rank in the order of execution.

    `placement[s]` is the rank that holds virtual stage s, in the first replica; `others` are the placements
    of the further replicas of a bidirectional schedule. `consecutive` is k, the number of micro-batches that
    run consecutively on a virtual stage before the next one has its turn. `update_every` counts the
    micro-batches of an optimiser step of an asynchronous schedule, and is 0 where one step, after the last
    micro-batch, uses all gradients. `encoders` are the ranks that hold the image encoder of a multimodal model.
    """

    name: str
    micro_batches: int
    consecutive: int
    placement: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]
    others: tuple[tuple[int, ...], ...] = ()
    update_every: int = 0
    encoders: tuple[int, ...] = ()

    @property
    def stages(self) -> int:
        """Number of virtual stages."""
        return len(self.placement)

    @property
    def ranks(self) -> int:
        """Number of pipeline ranks."""
        return len(self.actions)

    @property
    def replicas(self) -> int:
        """Number of pipelines that run over the same ranks: 1, or 2f of a bidirectional schedule."""
        return 1 + len(self.others)

    @property
    def synchronous(self) -> bool:
        """Whether every micro-batch of a step sees the weights that all earlier steps left."""
        return not self.update_every

    @property
    def placements(self) -> tuple[tuple[int, ...], ...]:
        """Rank of every virtual stage, of every replica."""
        return (self.placement, *self.others)

    @cached_property
    def carries_tokens(self) -> bool:
        """Whether image tokens travel with the activations, from an encoder inside the first stage."""
        shared = any(a.kind is Kind.SHARE_TOKENS for _, _, a in self.everything())
        return bool(self.encoders) and not shared

    def encoded_by(self, rank: int) -> tuple[int, ...]:
        """Micro-batches with images that a rank encodes, in order."""
        return tuple(a.micro_batch for a in self.actions[rank] if a.kind is Kind.ENCODE)

    def rank_of(self, stage: int, replica: int = 0) -> int:
        """Rank that holds a virtual stage of a replica; the first one that holds the image encoder."""
        if stage == ENCODER:
            return self.encoders[0]
        return self.placements[replica][stage]

    def stages_of(self, rank: int, replica: int = 0) -> tuple[int, ...]:
        """Virtual stages of a replica that a rank holds, in ascending order."""
        return tuple(s for s, owner in enumerate(self.placements[replica]) if owner == rank)

    def held_by(self, rank: int) -> tuple[tuple[int, int], ...]:
        """(replica, virtual stage) of everything that a rank holds."""
        return tuple((q, s) for q in range(self.replicas) for s in self.stages_of(rank, q))

    def owners(self, stage: int) -> tuple[int, ...]:
        """Ranks that hold a virtual stage, by replica, or the image encoder."""
        if stage == ENCODER:
            return self.encoders
        return tuple(placement[stage] for placement in self.placements)

    def everything(self) -> Iterator[tuple[int, int, Action]]:
        """All actions as (rank, slot, action)."""
        for rank, actions in enumerate(self.actions):
            for slot, action in enumerate(actions):
                yield rank, slot, action
