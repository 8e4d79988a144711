"""Names of kernels tell attention from products, and communication from compute, whoever wrote it."""

import pytest

from tracekit.rank_events.compute import COMM_KERNEL
from tracekit.rank_events.operation_names import canonical_op
from tracekit.steps.features import ALLOCATOR, ATTENTION, MATMUL


@pytest.mark.parametrize(
    ("name", "attention", "matmul"),
    [
        ("void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, cutlass::bfloat16_t>>", True, False),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", True, False),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", False, True),
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT", False, True),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_256x128>", False, True),
        ("aten::mm", False, True),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add>", False, False),
    ],
)  # fmt: skip
def test_attention_is_no_product(name, attention, matmul):
    assert (ATTENTION.search(name) is not None, MATMUL.search(name) is not None) == (attention, matmul)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*)", "all_to_all"),
        ("void deep_ep::internode_ll::combine<4, 7168, 9>(void*, void*, int*)", "all_to_all"),
        ("void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)", None),
        ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "send"),
        ("kuserbuffers_pushrecv(int, int, int, int, int*, int*, int, unsigned long)", "recv"),
        ("userbuffers_fp16_sum_inplace_gpu_rr<8>(int, int, int, void*)", "other"),
        (
            "void c10d::symmetric_memory::(anonymous namespace)::barrier_kernel(unsigned int**, int)",
            "barrier",
        ),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        (
            "void tensorrt_llm::kernels::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport",
            "all_reduce",
        ),
        ("void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>(at::native::ReduceOp)", None),
    ],
)
def test_communication_has_many_names(name, op):
    assert (canonical_op(name) if COMM_KERNEL.search(name) else None) == op


@pytest.mark.parametrize(
    "name", ["cudaMalloc", "hipFree", "cuMemCreate", "cuMemMap", "cuMemUnmap", "hipMemRelease"]
)
def test_calls_of_the_allocator_are_known(name):
    assert ALLOCATOR.search(name)


@pytest.mark.parametrize("name", ["cudaMemcpyAsync", "cudaLaunchKernel", "cuMemcpyHtoD", "hipMemset"])
def test_copies_are_no_allocation(name):
    assert not ALLOCATOR.search(name)
