"""Phase and micro-batch of a communication call, for the recorders of calls."""

from numerics.schema import Phase
from reftrain.rank.events import CollectiveCall
from reftrain.schedule.actions import Action, Kind

REDUCED_AXES = frozenset({"dp", "dp_cp", "edp", "kv", "embedding"})

_FORWARDS = frozenset({Kind.FORWARD, Kind.ENCODE})


def moment(call: CollectiveCall, action: Action | None) -> tuple[Phase, int]:
    """Return phase and micro-batch of a call within an action; reductions of gradients have their own phase and -1."""
    if call.axis == "pp" and call.peer is not None:
        kind, _, number = call.label.partition(".")
        return ("forward" if kind[1] == "A" else "backward"), int(number.partition(":")[0].partition("@")[0])
    if call.label in {"valid_tokens", "image_tokens"}:
        return "forward", -1
    if action is None or call.axis in REDUCED_AXES:
        return "reduce", -1
    return ("forward" if action.kind in _FORWARDS else "backward"), action.micro_batch
