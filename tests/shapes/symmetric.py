"""Communication that NCCL does not see: DeepEP's kernels, Transformer Engine's userbuffers, symmetric memory."""

from dataclasses import dataclass

from tests.shapes.calls import Group
from tests.shapes.experts import Expert, Experts, Tokens
from tests.shapes.forms import peer_copy, poll, pull, push, together
from tests.shapes.fsdp import Member, Sharded
from tests.shapes.fsdp import Meshes as ShardMeshes
from tests.shapes.layers import (
    FLASH,
    FLASH_OP,
    GEMM,
    GEMM_OUT,
    LOSS,
    NORM,
    POINTWISE,
    SUM_OP,
    scale,
)
from tests.shapes.megatron import Megatron, Meshes, Stage
from tests.shapes.rank import COMPUTE, Rank

COMM = "deep ep"
DEEP_EP = "void deep_ep::intranode::"
NOTIFY = f"{DEEP_EP}notify_dispatch<8>(int const*, int*, int const*, int*, int, int, int, bool const*, int*)"
DISPATCH = f"{DEEP_EP}dispatch<8, 768, 8192>(int4*, float*, int*, long*, float*, int*, int*, int4 const*)"
CACHED = f"{DEEP_EP}cached_notify_combine<8>(void**, int*, int, int, int, int**, int)"
COMBINE = f"{DEEP_EP}combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*, float*, __nv_bfloat16 const*)"
LAYOUT = (
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*, int*, int*, bool*, int, int)"
)
"""DeepEP's kernels within a host."""
SEND = "kuserbuffers_pushsend(int*, int*, int4*, int4*, int)"
RECEIVE = "kuserbuffers_pushrecv(int, int, int, int, int*, int*, int, unsigned long)"
REDUCE = "void transformer_engine::reduce_bf16_cuda<__nv_bfloat16>(void*, void*, int, int)"
"""Userbuffers' kernels; one that receives spins until its peer has written."""
BARRIER = (
    "void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel"
    "(unsigned int**, int, int, int, unsigned long)"
)
"""What begins and ends an exchange through symmetric memory."""
BYTES = 2


@dataclass(frozen=True)
class DeepExperts(Experts):
    """Experts whose tokens DeepEP sends."""

    def member(self, rank: Rank, groups: tuple[Group, Group, Group | None], tokens: Tokens) -> "DeepExpert":
        """One rank in one step."""
        return DeepExpert(self, rank, groups, tokens)


class DeepExpert(Expert):
    """One rank in one step."""

    def spin(self, name: str, size: int) -> int:
        """One of DeepEP's kernels, on its stream."""
        return together(self.rank, self.block, name, size, COMM)

    def dispatch(self, size: int) -> None:
        """Send tokens to their experts."""
        with self.rank.span("FusedDispatch", "cpu_op"):
            self.rank.wait_stream(COMM, COMPUTE)
            self.rank.kernel(LAYOUT, 6, "memory", stream=COMM, op="FusedDispatch")
            poll(self.rank, self.spin(NOTIFY, 4096))
            self.rank.wait(self.spin(DISPATCH, size))

    def dispatch_again(self, size: int) -> None:
        """Send gradients the same way, in numbers that are known."""
        with self.rank.span("FusedCombineBackward", "cpu_op"):
            self.rank.wait_stream(COMM, COMPUTE)
            self.rank.wait(self.spin(DISPATCH, size))

    def combine(self, size: int, name: str) -> None:
        """Send tokens, or their gradients, back."""
        with self.rank.span(name, "cpu_op"):
            self.rank.wait_stream(COMM, COMPUTE)
            self.spin(CACHED, 4096)
            self.rank.wait(self.spin(COMBINE, size))

    def route(self) -> None:
        """Choose experts; DeepEP tells how many tokens come."""
        self.rank.kernel(LOSS, self.config.unit * 0.1, "memory", op="aten::topk")

    def experts(self, place: int, micro: int, *, backward: bool) -> None:
        """Send tokens, work on those that came, send them back; backward the numbers are known."""
        rank, config = self.rank, self.config
        shares = self.tokens[rank.number // config.ep, place, micro]
        share, work = shares[rank.number % config.ep], config.unit * scale(backward=backward)
        moved = int(config.activations * BYTES * max(shares))
        if backward:
            self.dispatch_again(moved)
        else:
            self.dispatch(moved)
        rank.kernel(POINTWISE, work * 0.1 * share, "memory", op="aten::index_select")
        rank.kernel(GEMM, work * 1.1 * share, op="GroupedGemm")
        rank.kernel(POINTWISE, work * 0.2 * share, "memory", op="aten::silu")
        rank.kernel(GEMM_OUT, work * 0.9 * share, op="GroupedGemm")
        self.combine(moved, "FusedDispatchBackward" if backward else "FusedCombine")


@dataclass(frozen=True)
class Userbuffers(Megatron):
    """Megatron with tp_comm_overlap: tensor groups write to peers' buffers in a ring, beside parts of a GEMM."""

    def member(self, meshes: Meshes, rank: Rank, lengths: dict[tuple[int, int], float]) -> "BufferStage":
        """One rank in one step."""
        return BufferStage(self, meshes, rank, lengths)


class BufferStage(Stage):
    """One rank in one step."""

    def ring(self, group: Group, name: str, us: float) -> None:
        """Parts of a GEMM, each beside the next part's way round the ring."""
        rank, tp = self.rank, self.config.tp
        size = self.config.activations * BYTES // tp
        following, before = group.beside(rank.number, 1), group.beside(rank.number, -1)
        streams = [f"ub compute {turn % 3}" for turn in range(tp)]
        for stream in (*set(streams), "ub send", "ub receive"):
            rank.wait_stream(stream, COMPUTE)
        for turn in range(tp):
            came = None
            if turn < tp - 1:
                push(rank, group, SEND, following, size, "ub send")
                came = pull(rank, group, RECEIVE, before, size, "ub receive")
            rank.kernel(name, us / tp, stream=streams[turn], op="tex::gemm")
            if came is not None:
                rank.wait_stream(streams[turn + 1], node=came)
                rank.wait_stream("ub send", node=came)
        for stream in dict.fromkeys(streams):
            rank.wait_stream(COMPUTE, stream)
        rank.wait_stream(COMPUTE, "ub send")

    def gathering(self, name: str, us: float) -> None:
        """A GEMM whose input is gathered part by part."""
        if self.tp is None:
            self.rank.kernel(name, us)
        else:
            self.ring(self.tp, name, us)

    def scattering(self, name: str, us: float) -> None:
        """A GEMM whose output is summed part by part."""
        if self.tp is None:
            self.rank.kernel(name, us)
            return
        self.ring(self.tp, name, us)
        self.rank.kernel(REDUCE, 9, "memory", op="tex::gemm")

    def attention(self, length: float, *, backward: bool) -> None:
        """A layer's attention."""
        rank, more = self.rank, scale(backward=backward)
        rank.kernel(NORM, self.unit * 0.12 * more, "memory", op="aten::native_layer_norm")
        self.gathering(GEMM, self.unit * 0.5 * more)
        us = self.unit * 0.9 * more * length * (1.2 if backward else 1)
        rank.kernel(FLASH[backward], us, op=FLASH_OP[backward])
        self.scattering(GEMM_OUT, self.unit * 0.35 * more)
        rank.kernel(POINTWISE, self.unit * 0.1 * more, "memory", op=SUM_OP)

    def mlp(self, *, backward: bool) -> None:
        """A layer's feed-forward part."""
        rank, more = self.rank, scale(backward=backward)
        rank.kernel(NORM, self.unit * 0.12 * more, "memory", op="aten::native_layer_norm")
        self.gathering(GEMM, self.unit * more)
        rank.kernel(POINTWISE, self.unit * 0.2 * more, "memory", op="aten::silu")
        self.scattering(GEMM_OUT, self.unit * 0.9 * more)
        rank.kernel(POINTWISE, self.unit * 0.1 * more, "memory", op=SUM_OP)


@dataclass(frozen=True)
class Asynchronous(Sharded):
    """FSDP2 with torchtitan's asynchronous tensor parallelism, through symmetric memory."""

    def member(self, meshes: ShardMeshes, rank: Rank) -> "AsyncMember":
        """One rank in one step."""
        return AsyncMember(self, meshes, rank)


class AsyncMember(Member):
    """One rank in one step."""

    def block(self, length: float) -> None:
        """A layer forward."""
        self.half(GEMM, 0.5, (FLASH[0], 0.9 * length, "gemm", FLASH_OP[0]), 0.35)
        self.half(GEMM, 1.0, (POINTWISE, 0.2, "memory", "aten::silu"), 0.9)

    def block_backward(self, length: float) -> None:
        """A layer backward."""
        self.half(GEMM, 2.0, (POINTWISE, 0.4, "memory", "aten::silu_backward"), 1.8)
        self.half(GEMM, 1.0, (FLASH[1], 2.1 * length, "gemm", FLASH_OP[1]), 0.7)

    def half(self, name: str, first: float, middle: tuple[str, float, str, str], last: float) -> None:
        """Half a layer: gather while multiplying, work, scatter while multiplying."""
        rank, unit = self.rank, self.config.unit
        rank.kernel(NORM, unit * 0.12, "memory", op="aten::native_layer_norm")
        self.exchange("symm_mem::fused_all_gather_matmul", name, unit * first)
        rank.kernel(middle[0], unit * middle[1], middle[2], op=middle[3])
        self.exchange("symm_mem::fused_matmul_reduce_scatter", GEMM_OUT, unit * last)
        rank.kernel(POINTWISE, unit * 0.05, "memory", op="aten::sum")

    def exchange(self, op: str, name: str, us: float) -> None:
        """Parts of a GEMM on two streams, each part's data copied from a peer."""
        rank, group = self.rank, self.tp
        if group is None:
            rank.kernel(name, us)
            return
        tp, size = len(group.ranks), self.config.activations * BYTES // len(group.ranks)
        with rank.span(op, "cpu_op"):
            together(rank, group, BARRIER, 64)
            rank.wait_stream("symm", COMPUTE)
            rank.kernel(name, us / tp, op="aten::mm")
            for turn in range(1, tp):
                stream = "symm" if turn % 2 else COMPUTE
                peer_copy(rank, group.beside(rank.number, turn), size, stream)
                rank.kernel(name, us / tp, stream=stream, op="aten::mm")
            rank.wait_stream(COMPUTE, "symm")
            together(rank, group, BARRIER, 64)
