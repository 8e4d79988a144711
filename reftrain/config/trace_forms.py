"""The forms in which versions of torch write communication into a trace, named by version: one registry.

`reftrain run` annotates its calls and `reftrain simulate` writes its rows in any of them, so that what reads traces can
be tried on each. Read from torch's and Kineto's sources of these versions, and from traces that they left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

MESSAGES: Final = ("send", "recv")
_HOST_ONLY: Final = frozenset({"Rank", "Global rank start", "Global rank stride"})
"""Arguments of the host's record that a kernel never has."""
_V22: Final = frozenset({"dtype", "Group size", "In msg nelems", "Out msg nelems"})
_V23: Final = _V22 | {"In split size", "Out split size"}
_LISTS: Final = frozenset({"Process Group Ranks", "Global rank start", "Global rank stride"})
_V24: Final = _V23 | _LISTS | {"Collective name", "Process Group Name", "Process Group Description"}
_V25: Final = _V24 | {"Rank", "Src Rank", "Dst Rank"}
_V212: Final = _V25 | {"Seq"}
_V213: Final = _V212 | {"Comms Id"}
_OLD_NAMES: Final = {"In msg nelems": "In msg size", "Out msg nelems": "Out msg size"}
_NCCL2_NAMES: Final = {
    "allreduce": "all_reduce",
    "_allgather_base": "allGatherSingleImpl",
    "_reduce_scatter_base": "reduceScatterSingleImpl",
}


@dataclass(frozen=True)
class TraceForm:
    """How one version of torch records communication.

    keys: arguments of a call. spelt: arguments with another name. titles: `nccl:all_reduce`, and `nccl:send 0->1` with
    ranks in the group. records_messages: a send or receive has a record and a title. lists_groups: there is a
    `distributedInfo.pg_config`. batched: messages are issued by batch_isend_irecv, and its kernel has no arguments.
    ended: the title of a batch ends with its call. bogus_id: such a kernel has its correlation as `External id`. nccl2:
    the backend of 2.15 (other names, one Seq for all calls of a group, kernels of batches with arguments but without
    peers), recorded with shapes, so that inputs of calls name the peer. old_kernels: `ncclKernel_…`. on_host: a trace
    without kernels can have this form. on_device: one with kernels can. annotated: our recorder adds records of calls;
    without them a trace is what stock torch leaves of Gloo.
    """

    keys: frozenset[str]
    spelt: Mapping[str, str] = field(default_factory=dict)
    titles: bool = True
    records_messages: bool = True
    lists_groups: bool = True
    batched: bool = False
    ended: bool = True
    bogus_id: bool = False
    nccl2: bool = False
    old_kernels: bool = False
    on_host: bool = True
    on_device: bool = True
    annotated: bool = True

    @property
    def names_peers(self) -> bool:
        """Return whether the kernel of a message names its peer: then a trace of the device alone suffices."""
        return "Src Rank" in self.keys and not self.batched

    def shown(self, values: Mapping[str, Any], *, host: bool = True) -> dict[str, Any]:
        """The arguments that this form writes of a call's full `values`; on the host's record, or on the kernel."""
        return {
            self.spelt.get(key, key): self._value(key, value)
            for key, value in values.items()
            if key in self.keys and (host or key not in _HOST_ONLY)
        }

    def _value(self, key: str, value: Any) -> Any:
        return _NCCL2_NAMES.get(value, value) if self.nccl2 and key == "Collective name" else value


def title_of(values: Mapping[str, Any], own: int) -> str | None:
    """The title of a message with these full arguments; `own` is the caller's rank in the group. None for others."""
    name = values["Collective name"]
    if name not in MESSAGES:
        return None
    return f"nccl:{name} {own}{'->' if name == 'send' else '<-'}{values['Rank']}"


FORMS: Final[Mapping[str, TraceForm]] = {
    "stock": TraceForm(
        frozenset(), titles=False, records_messages=False, on_device=False, annotated=False
    ),
    "2.1": TraceForm(
        frozenset(), records_messages=False, lists_groups=False, old_kernels=True, on_host=False
    ),
    "2.2": TraceForm(_V22, _OLD_NAMES, lists_groups=False, on_host=False),
    "2.3": TraceForm(_V23, on_host=False),
    "2.4": TraceForm(_V24),
    "2.4-untitled": TraceForm(_V24, titles=False),
    "2.5": TraceForm(_V25),
    "2.5-batched": TraceForm(_V25, batched=True, ended=False, bogus_id=True, on_host=False),
    "2.6-batched": TraceForm(_V25, batched=True, ended=False, on_host=False),
    "2.9-batched": TraceForm(_V25, batched=True, on_host=False),
    "2.12": TraceForm(_V212),
    "2.13": TraceForm(_V213),
    "2.13-batched": TraceForm(_V213, batched=True, on_host=False),
    "2.15": TraceForm(
        _V213 - _LISTS - {"Rank", "Src Rank", "Dst Rank"}, titles=False, nccl2=True, on_host=False
    ),
    "2.15-batched": TraceForm(
        _V213 - _LISTS - {"Rank", "Src Rank", "Dst Rank"},
        titles=False, nccl2=True, batched=True, on_host=False,
    ),
}  # fmt: skip
"""By torch version; `-batched` where messages are issued in batches, `-untitled` where annotations were not kept.
`stock` is what torch itself records on Gloo."""
NEWEST: Final = "2.13"
"""The newest form of the older backend, which new traces get."""
HOST_FORMS: Final = tuple(name for name, form in FORMS.items() if form.on_host)
"""Forms that a trace without kernels can have."""
DEVICE_FORMS: Final = tuple(name for name, form in FORMS.items() if form.on_device)
"""Forms that a trace with kernels can have."""
