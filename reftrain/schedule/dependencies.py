"""Data dependencies of a table: the results that an action needs, and the one that it gives.

A *token* names a result: the activation of a stage, the gradient that a stage passes on, or the part of a replica in
the sum over replicas. `check` and `timing` both run a table by waiting for tokens, so that the order that is proved
possible is the order that is timed.
"""

from collections.abc import Iterator

from reftrain.schedule.actions import ENCODER, PASSES_GRADIENT, Action, Kind, Schedule

Token = tuple[str, int, int, int]
"""(ACTIVATION, GRADIENT, SYNC or IMAGES; replica; stage; micro-batch)."""

ACTIVATION, GRADIENT, SYNC, IMAGES = "activation", "gradient", "sync", "images"


def gives(action: Action) -> Token | None:
    """Return the token that an action gives when it ends, or None."""
    if action.kind is Kind.FORWARD:
        return ACTIVATION, action.replica, action.stage, action.micro_batch
    if action.kind in PASSES_GRADIENT:
        return GRADIENT, action.replica, action.stage, action.micro_batch
    if action.kind is Kind.ENCODE:
        return IMAGES, 0, ENCODER, action.micro_batch
    if action.kind is Kind.SYNC_REPLICAS and action.stage != ENCODER:
        return SYNC, action.replica, action.stage, 0
    return None


class Dependencies:
    """The tokens that the actions of one table need."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        forwards = (a for _, _, a in schedule.everything() if a.kind is Kind.FORWARD)
        self._replica = {a.micro_batch: a.replica for a in forwards} if schedule.carries_tokens else {}
        self._synced = {a.stage for _, _, a in schedule.everything() if a.kind is Kind.SYNC_REPLICAS}

    def needs(self, action: Action) -> Iterator[Token]:
        """Yield the tokens that must exist before an action can run."""
        stage, micro_batch, replica = action.stage, action.micro_batch, action.replica
        if action.kind is Kind.FORWARD:
            if stage:
                yield ACTIVATION, replica, stage - 1, micro_batch
            elif self.schedule.carries_tokens:
                yield IMAGES, 0, ENCODER, micro_batch
        elif action.kind in PASSES_GRADIENT | {Kind.RECOMPUTE}:
            yield ACTIVATION, replica, stage, micro_batch
            if stage + 1 < self.schedule.stages:
                yield GRADIENT, replica, stage + 1, micro_batch
        elif action.kind is Kind.BACKWARD_WEIGHT:
            yield GRADIENT, replica, stage, micro_batch
        elif action.kind is Kind.OPTIMIZER_STEP and stage in self._synced:
            for other in range(self.schedule.replicas):
                yield SYNC, other, stage, 0
        elif action.kind is Kind.ENCODE_BACKWARD and self.schedule.carries_tokens:
            yield GRADIENT, self._replica[micro_batch], 0, micro_batch
        elif action.kind is Kind.SHARE_TOKENS:
            yield from ((IMAGES, 0, ENCODER, number) for number in range(self.schedule.micro_batches))
        elif action.kind is Kind.GATHER_TOKENS:
            every = (a for _, _, a in self.schedule.everything() if a.kind in PASSES_GRADIENT)
            yield from ((GRADIENT, a.replica, a.stage, a.micro_batch) for a in every)

    def source(self, token: Token) -> tuple[int, str]:
        """Return the rank that gives a token, and the action that gives it, in the text form."""
        what, replica, stage, micro_batch = token
        kind = {
            ACTIVATION: Kind.FORWARD, GRADIENT: Kind.BACKWARD, SYNC: Kind.SYNC_REPLICAS, IMAGES: Kind.ENCODE
        }[what]  # fmt: skip
        return self.schedule.rank_of(stage, replica), str(Action(kind, stage, micro_batch, replica))
