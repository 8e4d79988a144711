"""How torch of a version describes communication: names of calls and kernels, and their arguments."""

from tests.shapes.calls import CollectiveCall, Group, Message, MessagesCall

Torch = tuple[int, int]
Args = dict[str, object]
CALLS = {
    "allreduce": ("c10d::allreduce_", "nccl:all_reduce", "AllReduce_Sum"),
    "_allgather_base": ("c10d::_allgather_base_", "nccl:_all_gather_base", "AllGather"),
    "_reduce_scatter_base": ("c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base", "ReduceScatter_Sum"),
    "allgather_into_tensor_coalesced": (
        "c10d::allgather_into_tensor_coalesced_",
        "nccl:all_gather_into_tensor_coalesced",
        "AllGather",
    ),
    "reduce_scatter_tensor_coalesced": (
        "c10d::reduce_scatter_tensor_coalesced_",
        "nccl:reduce_scatter_tensor_coalesced",
        "ReduceScatter_Sum",
    ),
    "broadcast": ("c10d::broadcast_", "nccl:broadcast", "Broadcast"),
    "all_to_allv": ("c10d::alltoall_base_", "nccl:all_to_all", "SendRecv"),
    "all_to_all": ("c10d::alltoall_base_", "nccl:all_to_all", "SendRecv"),
}
"""By operation: the operator, the title, NCCL's name of the kernel."""
SEND_RECEIVE = "SendRecv"
TYPES = {
    "BFloat16": ("bf16", "__nv_bfloat16"),
    "Float": ("f32", "float"),
    "Long": ("i64", "int64_t"),
    "Int": ("u32", "uint32_t"),
}
"""By dtype: NCCL's short name, and the older one."""
SHOWN_RANKS = 30
"""Ranks of a group that a call lists."""
SIZE_SINCE, SPLITS_SINCE, NAME_SINCE = (2, 2), (2, 3), (2, 4)
RANK_SINCE, SEQUENCE_SINCE, COMMUNICATION_SINCE = (2, 5), (2, 12), (2, 13)
"""The torch since which calls tell these."""


def kernel_name(kernel: str, dtype: str, torch: Torch) -> str:
    """The name of NCCL's kernel."""
    short, old = TYPES[dtype]
    arguments = "ncclDevComm*, unsigned long, ncclWork*"
    if torch < SIZE_SINCE:
        kind = old if kernel.endswith("_Sum") else "int8_t"
        return f"ncclKernel_{kernel.removesuffix('_Sum')}_RING_LL_Sum_{kind}({arguments})"
    if torch >= NAME_SINCE:
        arguments = "ncclDevKernelArgsStorage<4096ul>"
    if kernel == SEND_RECEIVE:
        return f"ncclDevKernel_SendRecv({arguments})"
    middle = f"{kernel}_{short}" if kernel.endswith("_Sum") else kernel
    return f"ncclDevKernel_{middle}_RING_LL({arguments})"


def listed(group: Group) -> str:
    """A group's ranks as a call lists them."""
    shown = ", ".join(map(str, group.ranks[:SHOWN_RANKS]))
    return f"[{shown}, ...]" if len(group.ranks) > SHOWN_RANKS else f"[{shown}]"


def stride(group: Group) -> int:
    """The distance between a group's ranks, 0 where it varies."""
    steps = {later - earlier for earlier, later in zip(group.ranks, group.ranks[1:], strict=False)}
    return steps.pop() if len(steps) == 1 else 0


def identity(group: Group, number: int, more: int = 0) -> int:
    """A call's id of its communication, which has 64 bits."""
    return 0x9E3779B97F4A7C15 * (group.number * 1315423911 + number * 2654435761 + more) % 2**64


def call_args(
    name: str, elements: tuple[int, int], dtype: str, splits: tuple[str, str], group: Group, torch: Torch
) -> Args:
    """What a call and its kernel tell of themselves."""
    args: Args = {}
    if torch >= NAME_SINCE:
        args["Collective name"] = name
    if torch >= SPLITS_SINCE:
        args |= {"In msg nelems": elements[0], "Out msg nelems": elements[1]}
    if torch >= SIZE_SINCE:
        args |= {"Group size": len(group.ranks), "dtype": dtype}
    if torch >= SPLITS_SINCE:
        args |= {"In split size": splits[0], "Out split size": splits[1]}
    if torch >= NAME_SINCE:
        args |= {
            "Process Group Name": str(group.number),
            "Process Group Description": group.description,
            "Process Group Ranks": listed(group),
        }
    return args


def host_args(group: Group, place: int, torch: Torch, *, asynchronous: bool) -> Args:
    """What the call alone tells."""
    args: Args = {}
    if torch >= NAME_SINCE:
        args |= {"Global rank start": group.ranks[0], "Global rank stride": stride(group)}
    if torch >= RANK_SINCE:
        args["Rank"] = place
    if torch >= SEQUENCE_SINCE:
        args["Is asynchronized op"] = asynchronous
    return args


def collective_args(call: CollectiveCall, torch: Torch) -> Args:
    """What a collective and its kernel tell."""
    args = call_args(call.op, call.elements, call.dtype, call.splits, call.group, torch)
    if torch >= SEQUENCE_SINCE:
        args["Seq"] = call.number + 40
    if torch >= COMMUNICATION_SINCE:
        args["Comms Id"] = identity(call.group, call.number)
    return args


def message_args(call: MessagesCall, message: Message, torch: Torch) -> Args:
    """What one message and its kernel tell."""
    sizes = (message.elements, message.elements)
    name = "send" if message.send else "recv"
    args = call_args(name, sizes, call.dtype, ("[]", "[]"), call.group, torch)
    if torch >= RANK_SINCE:
        args["Dst Rank" if message.send else "Src Rank"] = message.peer
    if torch >= SEQUENCE_SINCE:
        args["Seq"] = call.number
    if torch >= COMMUNICATION_SINCE:
        args["Comms Id"] = identity(call.group, call.number, 7)
    return args


def title(call: MessagesCall, rank: int, message: Message) -> str:
    """The annotation of a message, by places in the group."""
    way = ("send", "->") if message.send else ("recv", "<-")
    return f"nccl:{way[0]} {call.group.place(rank)}{way[1]}{call.group.place(message.peer)}"
