"""What each torch version writes about communication: keys, titles and names of kernels.

The table follows facts/p2p.md; the keys of 2.2 and 2.3 were read from the strings of those wheels.
"""

from dataclasses import dataclass
from itertools import pairwise

from tests.localise.calls import Collective, Part
from tests.localise.job import Version

CUT = 30
"""Lists longer than this are cut."""

C10D = {
    "all_reduce": ("c10d::allreduce_", "allreduce", "nccl:all_reduce", "AllReduce_Sum", "all_reduce"),
    "all_gather": (
        "c10d::_allgather_base_",
        "_allgather_base",
        "nccl:_all_gather_base",
        "AllGather",
        "allGatherSingleImpl",
    ),
    "reduce_scatter": (
        "c10d::_reduce_scatter_base_",
        "_reduce_scatter_base",
        "nccl:_reduce_scatter_base",
        "ReduceScatter_Sum",
        "reduceScatterSingleImpl",
    ),
    "all_gather_coalesced": (
        "c10d::allgather_into_tensor_coalesced_",
        "allgather_into_tensor_coalesced",
        "nccl:all_gather_into_tensor_coalesced",
        "AllGather",
        "allgather_into_tensor_coalesced",
    ),
    "reduce_scatter_coalesced": (
        "c10d::reduce_scatter_tensor_coalesced_",
        "reduce_scatter_tensor_coalesced",
        "nccl:reduce_scatter_tensor_coalesced",
        "ReduceScatter_Sum",
        "reduce_scatter_tensor_coalesced",
    ),
    "all_to_all": (
        "c10d::alltoall_base_",
        "all_to_allv",
        "nccl:all_to_all",
        "SendRecv",
        "allToAllSingleImpl",
    ),
    "broadcast": ("c10d::broadcast_", "broadcast", "nccl:broadcast", "Broadcast", "broadcastImpl"),
}
"""Per operation: cpu_op, name on the record, title, kernel's stem, and the name that nccl2 gives."""


@dataclass(frozen=True)
class Group:
    """A process group as one rank's trace names it."""

    name: str
    description: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Forms:
    """How one torch version writes."""

    torch: Version
    rocm: bool = False

    @property
    def nccl2(self) -> bool:
        """Whether the default backend is nccl2."""
        return self.torch >= (2, 15)

    @property
    def decimals(self) -> bool:
        """Whether timestamps have nanosecond digits relative to baseTimeNanoseconds."""
        return self.torch >= (2, 4)

    def stride(self, ranks: tuple[int, ...]) -> int | None:
        """The common difference of the ranks, or None where they are irregular."""
        steps = {b - a for a, b in pairwise(ranks)} or {1}
        return steps.pop() if len(steps) == 1 else None

    def members(self, ranks: tuple[int, ...]) -> str:
        """The printed list of a group's ranks."""
        if self.nccl2 or self.stride(ranks) is None:
            return '"[]"'
        shown = ", ".join(map(str, ranks[:CUT]))
        return f'"[{shown}, ...]"' if len(ranks) > CUT else f'"[{shown}]"'

    def base(
        self, name: str, group: Group, sizes: tuple[int, int], dtype: str, splits: tuple = ((), ())
    ) -> list[tuple[str, str]]:
        """Keys that stand on record and kernel."""
        if self.torch < (2, 2):
            return []
        unit = "size" if self.torch < (2, 3) else "nelems"
        found = [(f"In msg {unit}", str(sizes[0])), (f"Out msg {unit}", str(sizes[1]))]
        found += [("Group size", str(len(group.ranks))), ("dtype", f'"{dtype}"')]
        if self.torch >= (2, 3):
            found += [("In split size", printed(splits[0])), ("Out split size", printed(splits[1]))]
        if self.torch >= (2, 4):
            found.insert(0, ("Collective name", f'"{name}"'))
            found += [
                ("Process Group Name", f'"{group.name}"'),
                ("Process Group Description", f'"{group.description}"'),
                ("Process Group Ranks", self.members(group.ranks)),
            ]
        return found

    def record_only(self, group: Group, rank: int, asynchronous: bool) -> list[tuple[str, str]]:
        """Keys that stand on the record only."""
        found = []
        if self.torch >= (2, 4) and not self.nccl2:
            stride = self.stride(group.ranks)
            found = [("Global rank start", str(group.ranks[0]))]
            found += [("Global rank stride", str(stride))] if stride is not None else []
        if self.torch >= (2, 5):
            found.append(("Rank", str(rank)))
        if self.torch >= (2, 12) and not self.nccl2:
            found.append(("Is asynchronized op", str(asynchronous).lower()))
        return found

    def sequence(self, number: int, comms: int) -> list[tuple[str, str]]:
        """Seq and Comms Id."""
        found = []
        if self.torch >= (2, 12):
            found.append(("Seq", str(number)))
        if self.torch >= (2, 13):
            found.append(("Comms Id", str(comms)))
        return found

    def peer(self, part: Part, group: Group) -> list[tuple[str, str]]:
        """Dst or Src Rank of a message: the peer's global rank."""
        if self.torch < (2, 5) or self.nccl2 or self.stride(group.ranks) is None:
            return []
        return [("Dst Rank" if part.send else "Src Rank", str(part.peer))]

    def sizes(self, call: Collective) -> tuple[int, int]:
        """Elements in and out of a collective."""
        many = len(call.group)
        if "gather" in call.op:
            return call.elements // many or 1, call.elements
        if "scatter" in call.op:
            return call.elements, call.elements // many or 1
        if call.op == "all_to_all":
            return sum(call.splits[0]), sum(call.splits[1])
        return call.elements, call.elements

    def names(self, op: str) -> tuple[str, str, str]:
        """cpu_op, name on the record, and title of a collective."""
        cpu_op, record, title, _, newer = C10D[op]
        return (cpu_op, newer, newer) if self.nccl2 else (cpu_op, record, title)

    def message_title(self, part: Part, group: Group, rank: int) -> str:
        """Title of an unbatched message, in group-local ranks."""
        if self.nccl2:
            return "send" if part.send else "recv"
        me, peer = group.ranks.index(rank), group.ranks.index(part.peer)
        return f"nccl:send {me}->{peer}" if part.send else f"nccl:recv {me}<-{peer}"

    def kernel(self, stem: str) -> str:
        """Full name of a kernel."""
        if self.rocm:
            return "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)"
        if self.torch < (2, 2):
            kind, _, reduce = stem.partition("_")
            return (
                f"ncclKernel_{kind}_RING_LL_{reduce or 'Sum'}_int8_t(ncclDevComm*, unsigned long, ncclWork*)"
            )
        tail = "_bf16_RING_LL" if "Sum" in stem else "" if stem == "SendRecv" else "_RING_LL"
        storage = (
            "ncclDevComm*, unsigned long, ncclWork*"
            if self.torch < (2, 4)
            else "ncclDevKernelArgsStorage<4096ul>"
        )
        return f"ncclDevKernel_{stem}{tail}({storage})"


def printed(splits: tuple[int, ...]) -> str:
    """A list of split sizes as printed."""
    if len(splits) > CUT:
        return '"[' + ", ".join(map(str, splits[:CUT])) + ', ...]"'
    return '"[' + ", ".join(map(str, splits)) + ']"'
