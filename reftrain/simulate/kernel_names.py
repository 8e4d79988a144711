"""Names that operations of a simulated job carry in a trace: kernels, host operators, NCCL's and torch's words."""

from typing import Final, NamedTuple


class Names(NamedTuple):
    """A device kernel and the host operator that launches it."""

    kernel: str
    operator: str


_GEMM: Final = "nvjet_tst_{tile}_h_bz_coopA_{layout}"
_ELEMENTWISE: Final = "void at::native::vectorized_elementwise_kernel<4, {what}>"
_FORWARD: Final = {
    "norm": Names(
        "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float, true>", "aten::rms_norm"
    ),
    "qkv": Names(_GEMM.format(tile="256x128_64x4", layout="TNT"), "aten::mm"),
    "rope": Names(_ELEMENTWISE.format(what="rotary_embedding"), "aten::mul"),
    "attention": Names(
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 128>>",
        "flash_attn::_flash_attn_forward",
    ),
    "out": Names(_GEMM.format(tile="128x256_64x4", layout="TNT"), "aten::mm"),
    "residual": Names(_ELEMENTWISE.format(what="at::native::CUDAFunctor_add<c10::BFloat16>"), "aten::add"),
    "ffn": Names(_GEMM.format(tile="256x128_64x5", layout="TNT"), "aten::mm"),
    "activation": Names(_ELEMENTWISE.format(what="silu_mul"), "aten::silu"),
    "embedding": Names("void at::native::indexSelectLargeIndex<c10::BFloat16, long>", "aten::embedding"),
    "head": Names(_GEMM.format(tile="256x256_64x3", layout="TNT"), "aten::linear"),
    "loss": Names("void at::native::cunn_SoftMaxForward<8, float, float>", "aten::_log_softmax"),
    "accumulate": Names(
        _ELEMENTWISE.format(what="at::native::CUDAFunctor_add<float>"),
        "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad",
    ),
    "optimizer": Names(
        "void at::native::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4>>", "aten::_fused_adamw_"
    ),
    "to_host": Names("Memcpy DtoH (Device -> Pinned)", "aten::copy_"),
    "to_device": Names("Memcpy HtoD (Pinned -> Device)", "aten::copy_"),
    "clip": Names("void at::native::multi_tensor_apply_kernel<LpNormFunctor<float>>", "aten::_foreach_norm"),
    "encoder": Names(_GEMM.format(tile="256x128_64x4", layout="TNT"), "aten::linear"),
    "forward": Names(_GEMM.format(tile="256x128_64x4", layout="TNT"), "aten::mm"),
}
_BACKWARD: Final = {
    "norm": Names("void at::native::layer_norm_grad_input_kernel<c10::BFloat16, float>", "RmsNormBackward"),
    "qkv": Names(
        _GEMM.format(tile="256x128_64x4", layout="NNT"), "autograd::engine::evaluate_function: MmBackward0"
    ),
    "rope": Names(_ELEMENTWISE.format(what="rotary_embedding_backward"), "MulBackward0"),
    "attention": Names(
        "void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64, 128>>",
        "FlashAttnFuncBackward",
    ),
    "out": Names(_GEMM.format(tile="128x256_64x4", layout="NTT"), "MmBackward0"),
    "residual": Names(_ELEMENTWISE.format(what="at::native::CUDAFunctor_add<c10::BFloat16>"), "AddBackward0"),
    "ffn": Names(_GEMM.format(tile="256x128_64x5", layout="NTT"), "MmBackward0"),
    "activation": Names(_ELEMENTWISE.format(what="silu_mul_backward"), "SiluBackward0"),
    "embedding": Names("void at::native::compute_grad_weight<c10::BFloat16, long>", "EmbeddingBackward0"),
    "head": Names(_GEMM.format(tile="256x256_64x3", layout="NTT"), "MmBackward0"),
    "loss": Names("void at::native::cunn_SoftMaxBackward<8, float, float>", "LogSoftmaxBackward0"),
    "encoder": Names(_GEMM.format(tile="256x128_64x4", layout="NTT"), "MmBackward0"),
    "backward": Names(_GEMM.format(tile="256x128_64x4", layout="NTT"), "MmBackward0"),
}

COLLECTIVES: Final = {
    "_allgather_base": Names(
        "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "c10d::_allgather_base_"
    ),
    "_reduce_scatter_base": Names(
        "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "c10d::_reduce_scatter_base_",
    ),
    "allreduce": Names(
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "c10d::allreduce_"
    ),
    "all_to_all": Names("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "c10d::alltoall_base_"),
    "broadcast": Names(
        "ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "c10d::broadcast_"
    ),
    "send": Names("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "c10d::send"),
    "recv": Names("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "c10d::recv_"),
}
"""By torch's name of the call, which traces carry as `Collective name`."""

RECORDER_NAMES: Final = {
    "_allgather_base": "nccl:_all_gather_base",
    "_reduce_scatter_base": "nccl:_reduce_scatter_base",
    "allreduce": "nccl:all_reduce",
    "all_to_all": "nccl:all_to_all",
    "broadcast": "nccl:broadcast",
}
"""The same in flight-recorder dumps, and in titles of calls up to torch 2.14."""

OPS: Final = {
    "all_gather": "_allgather_base",
    "reduce_scatter": "_reduce_scatter_base",
    "all_reduce": "allreduce",
    "all_to_all": "all_to_all",
    "broadcast": "broadcast",
}
"""Torch's name by ours."""


def kernel_names(label: str, *, backward: bool) -> Names:
    """Return the kernel names of a compute operation; an unknown label is its own name."""
    table = _BACKWARD if backward else _FORWARD
    return table.get(label) or _FORWARD.get(label) or Names(label, f"reftrain::{label}")
