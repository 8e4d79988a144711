"""When a communication call happens: phase and micro-batch, for whoever records calls."""

from numerics.schema import Phase
from reftrain.rank.events import CollectiveCall
from reftrain.schedule.actions import Action, Kind

REDUCED_AXES = frozenset({"dp", "dp_cp", "kv", "embedding"})


def moment(call: CollectiveCall, action: Action | None) -> tuple[Phase, int]:
    """Phase and micro-batch of a call within an action; gradients are reduced in a phase of their own, as of none."""
    if call.axis == "pp" and call.peer is not None:
        kind, _, number = call.label.partition(".")
        return ("forward" if kind[1] == "A" else "backward"), int(number.partition("@")[0])
    if call.label == "valid_tokens":
        return "forward", -1
    if action is None or call.axis in REDUCED_AXES:
        return "reduce", -1
    return ("forward" if action.kind is Kind.FORWARD else "backward"), action.micro_batch
