"""The version of a call, on which all members of a group must agree, and the calls that synchronise them."""

from tracekit.dumps.calls import Signature, numel

Version = tuple[object, ...]
"""The properties of a call on which all members must agree; two versions under one number are a mismatch."""

_SYNCHRONISING = ("allreduce", "allgather", "reducescatter", "alltoall", "barrier")


def synchronising(call: Signature | None) -> bool:
    """Return whether no member can finish this call before all have issued it; False if the call is unknown."""
    return call is not None and _plain(call.op).startswith(_SYNCHRONISING)


def version_of(call: Signature) -> Version:
    """Return the version of a call: its operation, and the sizes and dtypes that may not differ by rank."""
    name = _plain(call.op)
    if name.startswith("alltoall"):
        return (name, call.dtypes)
    if name.startswith(("allreduce", "broadcast", "reduce")) and not name.startswith("reducescatter"):
        return (name, numel(call.input_sizes), call.dtypes)
    if name.startswith(("allgatherbase", "allgatherinto", "reducescatterbase", "reducescattertensor")):
        return (name, numel(call.input_sizes), numel(call.output_sizes), call.dtypes)
    if name.startswith("allgather"):
        return (name, numel(call.output_sizes), call.dtypes)
    if name.startswith(("gather", "reducescatter")):
        return (name, numel(call.input_sizes), call.dtypes)
    if name.startswith("scatter"):
        return (name, numel(call.output_sizes), call.dtypes)
    return (name,)


def _plain(name: str) -> str:
    return name.lower().replace("_", "")
