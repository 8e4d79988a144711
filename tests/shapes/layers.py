"""Work that all frameworks share: parts of a transformer, batches, the update, pauses."""

from tests.shapes.calls import Group, SyncCall
from tests.shapes.rank import COMPUTE, Rank

GEMM = (
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize2x1x1_execute_segment_k_off"
    "_kernel__5x_cublas"
)
GEMM_OUT = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT"
CUTLASS = "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128_64x3_nn_align8"
HEAD = f"void cutlass::Kernel2<{CUTLASS}>({CUTLASS}::Params)"
NATIVE = "at::native::(anonymous namespace)"
ADD = "at::native::CUDAFunctor_add<c10::BFloat16>, std::array<char*, 3ul>"
POINTWISE = f"void at::native::vectorized_elementwise_kernel<4, {ADD} >(int, {ADD})"
HALF = "c10::BFloat16 const*"
NORM = (
    f"void {NATIVE}::vectorized_layer_norm_kernel<c10::BFloat16, float>"
    f"(int, float, {HALF}, {HALF}, {HALF}, float*, float*, c10::BFloat16*)"
)
FLASH_FORWARD = (
    "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, false, cutlass::bfloat16_t> >"
    "(Flash_fwd_params)"
)
FLASH_BACKWARD = (
    "void flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel"
    "<Flash_bwd_kernel_traits<128, 64, 128, 8, 4, 2, 2, cutlass::bfloat16_t> >(Flash_bwd_params)"
)
FLASH = (FLASH_FORWARD, FLASH_BACKWARD)
MANY, TENSORS = f"void {NATIVE}::multi_tensor_apply_kernel", f"{NATIVE}::TensorListMetadata"
ADAM = f"{MANY}<{TENSORS}<4>, {NATIVE}::FusedAdamMathFunctor<float, 4> >({TENSORS}<4>)"
GRADIENT_NORM = f"{MANY}<{TENSORS}<1>, {NATIVE}::LpNormFunctor<float, NormType::L2, float, 1> >()"
LOSS = f"void {NATIVE}::cunn_SoftMaxForward<8, c10::BFloat16, float, float>(float*, {HALF}, int)"
SUM_OP, FLASH_OP = "aten::add", ("aten::_flash_attention_forward", "aten::_flash_attention_backward")


def scale(*, backward: bool) -> float:
    """The work of a pass beside that of the forward one."""
    return 2.0 if backward else 1.0


def attention(rank: Rank, unit: float, length: float = 1.0, *, backward: bool = False) -> None:
    """Attention of a layer whose documents have a mean `length`."""
    more = scale(backward=backward)
    norm_and_projection(rank, unit, backward=backward)
    us = unit * 0.9 * more * length * (1.2 if backward else 1)
    rank.kernel(FLASH[backward], us, op=FLASH_OP[backward])
    rank.kernel(GEMM_OUT, unit * 0.35 * more)
    rank.kernel(POINTWISE, unit * 0.1 * more, "memory", op=SUM_OP)


def norm_and_projection(rank: Rank, unit: float, *, backward: bool) -> None:
    """What stands before attention."""
    more = scale(backward=backward)
    rank.kernel(NORM, unit * 0.12 * more, "memory", op="aten::native_layer_norm")
    rank.kernel(GEMM, unit * 0.5 * more)


def mlp(rank: Rank, unit: float, *, backward: bool = False) -> None:
    """The feed-forward part of a layer."""
    more = scale(backward=backward)
    rank.kernel(NORM, unit * 0.12 * more, "memory", op="aten::native_layer_norm")
    rank.kernel(GEMM, unit * 1.0 * more)
    rank.kernel(POINTWISE, unit * 0.2 * more, "memory", op="aten::silu")
    rank.kernel(GEMM_OUT, unit * 0.9 * more)
    rank.kernel(POINTWISE, unit * 0.1 * more, "memory", op=SUM_OP)


def layer(rank: Rank, unit: float, length: float = 1.0, *, backward: bool = False) -> None:
    """A layer of a transformer."""
    attention(rank, unit, length, backward=backward)
    mlp(rank, unit, backward=backward)


def head_and_loss(rank: Rank, head_us: float, loss_us: float) -> None:
    """The last projection and the loss."""
    rank.kernel(HEAD, head_us)
    rank.kernel(LOSS, loss_us, "memory", op="aten::cross_entropy_loss")


def update(rank: Rank, us: float) -> None:
    """The optimizer's step, in four kernels."""
    with rank.span("Optimizer.step#AdamW.step"):
        for _ in range(4):
            rank.kernel(ADAM, us / 4, "memory", op="aten::_fused_adamw_")
    with rank.span("Optimizer.zero_grad#AdamW.zero_grad"):
        rank.host(25)


def load(rank: Rank, us: float = 120.0) -> None:
    """A batch comes from the loader and goes to the device; here the fault `data` stalls."""
    with rank.span("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"):
        late = rank.stall_us("data")
        quick = us * rank.noise(0.1)
        stall = late * rank.noise(0.15) if late else 0
        rank.host(quick + (0 if rank.setting.clean else stall), exact=True)
    rank.kernel(
        "Memcpy HtoD (Pinned -> Device)", 18.0, op="aten::to", launch="cudaMemcpyAsync", copied=1048576
    )


def pause(rank: Rank) -> None:
    """Where the fault `pause` stalls the host, as garbage collection does."""
    rank.stall("pause", rank.chance.random())
    retried(rank)


def retried(rank: Rank) -> None:
    """Where the fault `allocate` lets the allocator free blocks, which waits for the device, and ask for new ones."""
    us = rank.stall_us("allocate")
    if us:
        wait: list[int | None] = [] if rank.setting.clean else [rank.tails.get(COMPUTE)]
        for name, share in (("cudaFree", 0.3), ("cudaFree", 0.2), ("cudaMalloc", 0.5)):
            begin = rank.host(0.5, exact=True)
            end = rank.host(0 if rank.setting.clean else us * share, wait, exact=True)
            if not rank.setting.clean:
                rank.calls.append(SyncCall(end, rank.thread, name, begin))


def one_number(rank: Rank, group: Group | None) -> None:
    """An all-reduce of one number, where there is a group."""
    if group is not None:
        rank.collective(group, "allreduce", 1, 1, "Float")


def logged(rank: Rank, group: Group, every: int, step: int) -> None:
    """The loss's mean, read by the host, in one of `every` steps."""
    if step % every == 0:
        one_number(rank, group)
        rank.item()
