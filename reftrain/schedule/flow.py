"""What an action needs from others and what it gives them: the data flow behind every table.

A *token* names a result: the activation of a stage, the gradient that a stage passes on, the end of a
stage's weight gradient, a replica's part in the sum over replicas. `check` and `timing` both run a table by
waiting for tokens, so that what is proved possible is what is replayed.
"""

from collections.abc import Iterator

from reftrain.schedule.actions import PASSES_GRADIENT, Action, Kind, Schedule

Token = tuple[str, int, int, int]
"""(what, replica, stage, micro-batch); what is activation, gradient or sync."""

ACTIVATION, GRADIENT, SYNC = "activation", "gradient", "sync"


def gives(action: Action) -> Token | None:
    """Token that an action makes available when it ends, or None."""
    if action.kind is Kind.FORWARD:
        return ACTIVATION, action.replica, action.stage, action.micro_batch
    if action.kind in PASSES_GRADIENT:
        return GRADIENT, action.replica, action.stage, action.micro_batch
    if action.kind is Kind.SYNC_REPLICAS:
        return SYNC, action.replica, action.stage, 0
    return None


class Flow:
    """The needs of the actions of one table."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._synced = {a.stage for _, _, a in schedule.everything() if a.kind is Kind.SYNC_REPLICAS}

    def needs(self, action: Action) -> Iterator[Token]:
        """Tokens that must exist before an action can run."""
        stage, micro_batch, replica = action.stage, action.micro_batch, action.replica
        if action.kind is Kind.FORWARD:
            if stage:
                yield ACTIVATION, replica, stage - 1, micro_batch
        elif action.kind in PASSES_GRADIENT | {Kind.RECOMPUTE}:
            yield ACTIVATION, replica, stage, micro_batch
            if stage + 1 < self.schedule.stages:
                yield GRADIENT, replica, stage + 1, micro_batch
        elif action.kind is Kind.BACKWARD_WEIGHT:
            yield GRADIENT, replica, stage, micro_batch
        elif action.kind is Kind.OPTIMIZER_STEP and stage in self._synced:
            for other in range(self.schedule.replicas):
                yield SYNC, other, stage, 0

    def source(self, token: Token) -> tuple[int, str]:
        """Rank that gives a token, and the action that does, in the text form."""
        what, replica, stage, micro_batch = token
        kind = {ACTIVATION: Kind.FORWARD, GRADIENT: Kind.BACKWARD, SYNC: Kind.SYNC_REPLICAS}[what]
        return self.schedule.rank_of(stage, replica), str(Action(kind, stage, micro_batch, replica))
