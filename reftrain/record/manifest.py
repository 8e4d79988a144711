"""run.json, the manifest of a run folder: what ran, on what, and which faults were planted.

`reftrain.run/1` is documented with the run folder; the planted faults are the truth that no analysis may read.
"""

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

import reftrain

SCHEMA: Final = "reftrain.run/1"


def versions() -> dict[str, str]:
    """Versions of what computed the run."""
    return {
        "reftrain": getattr(reftrain, "__version__", "0.1.0"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def fingerprint() -> dict[str, Any]:
    """What the ranks computed on: processor, instruction set as torch uses it, GPUs."""
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "machine": platform.machine(),
        "processor": _processor(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": gpus,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )


def write_manifest(folder: Path, values: Mapping[str, Any]) -> None:
    """Write `folder`/run.json; the file appears whole or not at all."""
    temporary = folder / ".run.json.tmp"
    temporary.write_text(json.dumps({"schema": SCHEMA, **values}, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / "run.json")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of `folder`, or None where there is none of ours."""
    try:
        found = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None
