"""The rules that a table of actions can break, and how a breach is reported."""

import enum
from dataclasses import dataclass


class Rule(enum.StrEnum):
    """Breaches that no runnable table has."""

    PLACEMENT = "action on a rank that does not hold the stage"
    UNKNOWN = "micro-batch or replica that the table does not have"
    TWICE = "action that runs twice"
    NO_FORWARD = "micro-batch that never goes forward"
    NO_BACKWARD = "micro-batch that never goes back"
    ORDER = "action before the one on its own rank that it needs"
    NO_SEND = "message that is never sent"
    NO_RECEIVE = "message that is never received"
    NO_MESSAGE = "send or receive without a rank at its other end"
    LATE_RECEIVE = "receive after the computation that reads it"
    EARLY_SEND = "send before the computation that makes it"
    MESSAGE_ORDER = "messages between two ranks in different order at the two ends"
    DOUBLE_FREE = "activations or weights freed twice"
    NOT_HELD = "activations or weights used that the rank does not hold"
    NEVER_FREED = "weights that are stashed and never dropped"
    STALE_WEIGHTS = "backward with other weights than its forward"
    NOT_REDUCED = "gradient that misses the reduction, the sum over replicas or the optimiser step"
    NOT_JOINED = "sum over replicas that an owner of the stage never joins"
    CYCLIC_WAIT = "ranks that wait for one another"


@dataclass(frozen=True)
class Problem:
    """One breach: its rank, the slot in its list (None for something absent), and the rule."""

    rank: int
    slot: int | None
    rule: Rule
    text: str

    def __str__(self) -> str:
        slot = "" if self.slot is None else f", slot {self.slot}"
        return f"rank {self.rank}{slot}: {self.text}"
