"""Names of kernels tell attention from products; attention names the types of the library of products."""

import pytest

from tracekit.tables.features import ATTENTION, MATMUL


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
