"""Describes the machine and software a capture was computed on: everything known to change bits.

Instruction set, oneDNN and ATen settings, library versions and the device change the order of sums within a kernel;
NCCL's settings change the order of its reductions. The thread count changes only large sums, so it is recorded but
never refuses a comparison.
"""

import contextlib
import os
import platform
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

_PREFIXES: Final = ("NCCL_", "ATEN_", "ONEDNN_", "DNNL_", "MKL_", "CUBLAS_", "TORCH_NCCL_")
_NAMES: Final = (
    "CUDA_LAUNCH_BLOCKING",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_TUNABLEOP_ENABLED",
    "OMP_NUM_THREADS",
)
_HARMLESS: Final = (
    "DEBUG",
    "SOCKET",
    "ASYNC",
    "TIMEOUT",
    "TIMING",
    "TRACE",
    "DUMP",
    "HEARTBEAT",
    "VERBOSE",
    "NUM_THREADS",
)


def environment() -> dict[str, Any]:
    """Return this process's environment, JSON-ready: what `schema.REFUSES` names, numpy, python, threads, host."""
    cuda = torch.cuda.is_available()
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "onednn": bool(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),  # type: ignore[no-untyped-call]
        "torch": torch.__version__,
        "mkl": bool(torch.backends.mkl.is_available()),  # type: ignore[no-untyped-call]
        "numpy": np.__version__,
        "python": platform.python_version(),
        "threads": torch.get_num_threads(),
        "gpus": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
        "cuda": torch.version.cuda,
        "nccl": _nccl() if cuda else None,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "float32_matmul": torch.get_float32_matmul_precision(),
        "settings": settings(os.environ),
        "host": socket.gethostname(),
    }


def settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that choose kernels, instruction sets or reduction orders."""
    return {
        name: value[:200]
        for name, value in sorted(environ.items())
        if (name.startswith(_PREFIXES) or name in _NAMES) and not any(word in name for word in _HARMLESS)
    }


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def _nccl() -> str | None:
    with contextlib.suppress(AttributeError, RuntimeError):
        return ".".join(str(part) for part in torch.cuda.nccl.version())  # type: ignore[no-untyped-call]
    return None
