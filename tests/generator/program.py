"""The operations that every rank issues, in program order, before any time is known.

An operation waits for its stream's previous one, for the operations in `after` (what `cudaStreamWaitEvent`
does) and for its launch by the host. As in c10d, a communication kernel first waits for the compute queued
before it.
"""

from dataclasses import dataclass, field

from tests.generator.mesh import Groups
from tests.generator.spec import Job

COMPUTE, COLLECTIVE, SEND, RECV, LOAD, SYNC = range(6)
STREAMS = {"compute": 7, "tp": 20, "cp": 24, "dp": 28, "world": 32, "mp": 32, "embd": 36}
LINK_STREAMS = {("f", SEND): 40, ("f", RECV): 44, ("b", SEND): 48, ("b", RECV): 52}

# label: (kernel, host operator)
LABELS = {
    "norm": (
        "void (anonymous namespace)::layer_norm_fwd_kernel<__nv_bfloat16, float>",
        "aten::native_layer_norm",
    ),
    "gemm": ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x256x64_warpgroupsize2x1x1", "aten::mm"),
    "attn": (
        "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>",
        "flash_attn::_flash_attn_forward",
    ),
    "act": ("void at::native::vectorized_elementwise_kernel<4, silu_mul>", "aten::silu"),
    "norm_b": (
        "void (anonymous namespace)::layer_norm_bwd_kernel<__nv_bfloat16, float>",
        "LayerNormBackward",
    ),
    "dgrad": ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_nn_n_tilesize128x128x64", "MmBackward0"),
    "wgrad": ("sm90_xmma_gemm_bf16bf16_f32f32_f32_nt_n_tilesize128x256x64", "MmBackward0"),
    "attn_b": (
        "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128>>",
        "FlashAttnFuncBackward",
    ),
    "act_b": ("void at::native::vectorized_elementwise_kernel<4, silu_mul_backward>", "SiluBackward0"),
    "embed": ("void at::native::indexSelectLargeIndex<__nv_bfloat16>", "aten::embedding"),
    "embed_b": ("void at::native::embedding_backward_feature_kernel<__nv_bfloat16>", "EmbeddingBackward0"),
    "head": ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize256x128x64", "aten::linear"),
    "loss": ("void at::native::cunn_SoftMaxForward<8, float>", "aten::_log_softmax"),
    "head_b": ("sm90_xmma_gemm_bf16bf16_f32f32_f32_nn_n_tilesize256x128x64", "MmBackward0"),
    "opt": ("void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor>", "aten::_fused_adamw_"),
}
COLLECTIVES = {
    "_allgather_base": (
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "c10d::_allgather_base_",
    ),
    "_reduce_scatter_base": (
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "c10d::_reduce_scatter_base_",
    ),
    "allreduce": (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "c10d::allreduce_",
    ),
    "broadcast": ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "c10d::broadcast_"),
    "send": ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "c10d::send"),
    "recv": ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "c10d::recv_"),
}


@dataclass
class RankProgram:
    """One rank's operations as parallel columns, all of one length."""

    kind: list[int] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)
    base: list[float] = field(default_factory=list)  # ns: kernel time, or host time of a load
    after: list[tuple[int, ...]] = field(default_factory=list)
    label: list[str] = field(default_factory=list)
    group: list[int] = field(default_factory=list)  # index of the process group, -1 where none
    key: list[int] = field(default_factory=list)  # number of the collective or message, -1 where none
    peer: list[int] = field(default_factory=list)
    seq: list[int] = field(default_factory=list)
    step: list[int] = field(default_factory=list)
    micro_batch: list[int] = field(default_factory=list)
    backward: list[bool] = field(default_factory=list)
    batch: list[int] = field(default_factory=list)  # first operation of the batch it is posted in, or itself


@dataclass
class Keys:
    """Numbers collectives and messages across ranks: the n-th call on a group is one collective."""

    numbers: dict[tuple[object, ...], int] = field(default_factory=dict)
    transfer: list[float] = field(default_factory=list)  # ns, by number
    members: list[int] = field(default_factory=list)
    group: list[int] = field(default_factory=list)
    pair: list[tuple[int, int] | None] = field(default_factory=list)

    def number(
        self, key: tuple[object, ...], transfer: float, members: int, group: int, pair: tuple | None
    ) -> int:
        if key not in self.numbers:
            self.numbers[key] = len(self.transfer)
            self.transfer.append(transfer)
            self.members.append(members)
            self.group.append(group)
            self.pair.append(pair)
        return self.numbers[key]


@dataclass
class Program:
    """The whole job: one program for each rank, and the collectives that they share."""

    ranks: list[RankProgram]
    keys: Keys


class RankBuilder:
    """Appends operations for one rank, and remembers the operations that its compute stream must still wait for."""

    def __init__(self, rank: int, groups: Groups, keys: Keys) -> None:
        self.rank, self.groups, self.keys = rank, groups.of[rank], keys
        self.out = RankProgram()
        self.pending: tuple[int, ...] = ()
        self.tail: tuple[int, ...] = ()  # last operation of the compute stream
        self.calls: dict[tuple[object, ...], int] = {}
        self.step = self.micro_batch = 0
        self.backward = False

    def emit(self, kind: int, stream: int, base: float, after: tuple[int, ...], label: str) -> int:
        out = self.out
        for column, value in (
            (out.kind, kind),
            (out.stream, stream),
            (out.base, base),
            (out.after, after),
            (out.label, label),
            (out.group, -1),
            (out.key, -1),
            (out.peer, -1),
            (out.seq, -1),
            (out.step, self.step),
            (out.micro_batch, self.micro_batch),
            (out.backward, self.backward),
            (out.batch, len(out.batch)),
        ):
            column.append(value)  # type: ignore[attr-defined]
        return len(out.kind) - 1

    def compute(self, label: str, base: float) -> None:
        index = self.emit(COMPUTE, 7, base, self.pending, label)
        self.pending, self.tail = (), (index,)

    def collective(
        self, kind: str, op: str, transfer: float, stream: str, *, wait: bool = True
    ) -> int | None:
        """Call `op` on this rank's group of `kind`; nothing happens in a group of one."""
        group = self.groups.get(kind)
        if group is None or len(group.ranks) == 1:
            return None
        index = self.emit(COLLECTIVE, STREAMS[stream], 0.0, self.tail + self.pending, op)
        seq = self.calls[group.index, "c"] = self.calls.get((group.index, "c"), 0) + 1
        out = self.out
        out.group[index], out.seq[index] = group.index, seq
        out.key[index] = self.keys.number((group.index, seq), transfer, len(group.ranks), group.index, None)
        if wait:
            self.pending += (index,)
        return index

    def message(
        self, kind: int, way: str, peer: int, transfer: float, group: str, together: tuple[int, ...] = ()
    ) -> int:
        """Send to, or receive from, `peer`, in one batch with `together`; `way` is f (activations) or b (gradients)."""
        index = self.emit(
            kind, LINK_STREAMS[way, kind], 0.0, self.tail + self.pending, "send" if kind == SEND else "recv"
        )
        pair = (self.rank, peer) if kind == SEND else (peer, self.rank)
        nth = self.calls[way, kind, peer] = self.calls.get((way, kind, peer), 0) + 1
        index_group = self.groups[group].index
        seq = self.calls[index_group, "p"] = self.calls.get((index_group, "p"), 0) + 1
        out = self.out
        out.peer[index], out.group[index], out.seq[index] = peer, index_group, seq
        out.batch[index] = min(together, default=index)
        out.key[index] = self.keys.number((*pair, way, nth), transfer, 2, index_group, pair)
        return index


def build(job: Job, groups: Groups) -> Program:
    """Programs of all ranks for `job.steps` steps."""
    from tests.generator.trainer import Trainer

    keys = Keys()
    ranks = [Trainer(job, RankBuilder(rank, groups, keys)).run() for rank in range(job.mesh.world)]
    return Program(ranks, keys)
