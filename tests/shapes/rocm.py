"""How a trace of AMD's devices differs: calls of HIP, kernels of Tensile, Composable Kernel and RCCL."""

from tests.shapes import layers

HIP = {
    "cudaLaunchKernel": ("hipLaunchKernel", 107),
    "cudaLaunchKernel of a module": ("hipExtModuleLaunchKernel", 65),
    "cudaLaunchKernelExC": ("hipExtLaunchKernel", 64),
    "cudaMemcpyAsync": ("hipMemcpyWithStream", 153),
    "cudaDeviceSynchronize": ("hipDeviceSynchronize", 48),
    "cudaStreamSynchronize": ("hipStreamSynchronize", 281),
    "cudaStreamWaitEvent": ("hipStreamWaitEvent", 283),
    "cudaEventRecord": ("hipEventRecord", 60),
    "cudaEventSynchronize": ("hipEventSynchronize", 61),
    "cudaMalloc": ("hipMalloc", 121),
    "cudaFree": ("hipFree", 79),
}
"""By call of the CUDA runtime, HIP's name and number of it."""
COLLECTIVE = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
"""The one kernel of RCCL, whatever it does."""
TILES = "MI16x16x1_SN_LDSB0_AFC1_AFEM1_AFEM1_ASEM1_CLR1_CADS0_EPS0_GRVWA8_GRVWB8_GSUAMB_ISA942_IU1_K1"
KERNELS = {
    layers.GEMM: f"Cijk_Alik_Bljk_BBS_BH_Bias_AS_SAV_UserArgs_MT256x256x64_{TILES}",
    layers.GEMM_OUT: f"Cijk_Ailk_Bljk_BBS_BH_Bias_AS_SAV_UserArgs_MT256x224x64_{TILES}",
    layers.HEAD: f"Cijk_Alik_Bljk_BBS_BH_Bias_AS_SAV_UserArgs_MT256x192x64_{TILES}",
    layers.FLASH_FORWARD: "void ck_tile::kentry<256, 2, ck_tile::FmhaFwdKernel<ck_tile::TileFmha<>>>(Kargs)",
    layers.FLASH_BACKWARD: "void ck_tile::kentry<256, 1, ck_tile::FmhaBwdDQDKDVKernel<ck_tile::TileFmha<>>>(Kargs)",
}
"""AMD's kernels instead of NVIDIA's; those of torch itself have the same names."""
MODULE = "cudaLaunchKernel of a module"
"""The call for a kernel of Tensile."""
AMD_COPIES = {
    "Memcpy HtoD (Pinned -> Device)": ("Memcpy HtoD (Host -> Device)", "HtoD"),
    "Memcpy DtoH (Device -> Pageable)": ("Memcpy DtoH (Device -> Host)", "DtoH"),
    "Memcpy DtoH (Device -> Pinned)": ("Memcpy DtoH (Device -> Host)", "DtoH"),
}
"""Names and kinds of copies."""


def amd_launch(launch: str, name: str) -> str:
    """The call that launches a kernel of this name."""
    return MODULE if KERNELS.get(name, "").startswith("Cijk") else launch


def amd_name(name: str) -> str:
    """The kernel that does the same work on an AMD device."""
    return COLLECTIVE if name.startswith("nccl") else KERNELS.get(name, name)
