"""run.json, the manifest of a run folder: configuration, machine, and planted faults.

`reftrain.run/1` is documented with the run folder; the planted faults are the truth that no analysis may read.
"""

import contextlib
import dataclasses
import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final, Protocol

import reftrain
from reftrain.config.run import RunConfig
from reftrain.errors import ConfigError
from reftrain.thresholds import LARGEST_MANIFEST
from tracekit.own_files import of_a_run
from tracekit.small_files import read_small

SCHEMA: Final = "reftrain.run/1"


def versions() -> dict[str, str]:
    """Return the versions of reftrain, torch and Python, without torch's where it is not installed."""
    found = {"reftrain": getattr(reftrain, "__version__", "0.1.0")}
    with contextlib.suppress(PackageNotFoundError):
        found["torch"] = version("torch")
    return {**found, "python": platform.python_version()}


def fingerprint() -> dict[str, Any]:
    """Return the hardware of the ranks: processor, instruction set as torch uses it, GPUs."""
    import torch

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


class Planted(Protocol):
    """A planted fault or bug, as run.json records it."""

    def to_json(self) -> Mapping[str, object]:
        """Return the entry in the manifest's list of faults."""


def describe(
    config: RunConfig, hosts: Sequence[str], faults: Sequence[Planted], machine: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the contents of run.json: configuration, hosts and machine, and the planted faults (the truth)."""
    mesh = config.mesh
    return {
        "mesh": {"order": list(mesh.order), "sizes": {axis: mesh.sizes[axis] for axis in mesh.order}},
        "world_size": mesh.world_size,
        "hosts": list(hosts),
        "steps": config.steps,
        "model": dataclasses.asdict(config.model),
        "encoder": dataclasses.asdict(config.encoder),
        "data": dataclasses.asdict(config.data),
        "dtype_policy": config.numerics.policy,
        "numerics": dataclasses.asdict(config.numerics),
        "parallel": dataclasses.asdict(mesh),
        "schedule": {
            **dataclasses.asdict(config.pipeline),
            "micro_batches": config.micro_batches,
            "consecutive": config.consecutive,
        },
        "optimizer": dataclasses.asdict(config.optimizer),
        "evaluation": dataclasses.asdict(config.evaluation),
        "compute": config.compute,
        "threads": config.threads,
        "device": config.device,
        "resumed": config.checkpoint.resume,
        "seeds": {"weights": config.seed, "data": config.data.seed},
        "versions": versions(),
        "fingerprint": dict(machine),
        "faults": [fault.to_json() for fault in faults],
    }


def write_manifest(folder: Path, values: Mapping[str, Any]) -> None:
    """Write `folder`/run.json; the file appears whole or not at all."""
    temporary = folder / ".run.json.tmp"
    temporary.write_text(json.dumps({"schema": SCHEMA, **values}, indent=1) + "\n", encoding="utf-8")
    temporary.replace(folder / "run.json")


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of `folder`, or None where it holds no manifest of reftrain."""
    try:
        found = json.loads(read_small(folder / "run.json", LARGEST_MANIFEST).decode())
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and found.get("schema") == SCHEMA else None


def refuse_foreign(field: str, folder: Path) -> None:
    """Raise ConfigError where a run must not be written: a link, or files with its names that no run of ours wrote."""
    if folder.is_symlink():
        raise ConfigError(field, f"{folder} is a symbolic link", "name the folder itself")
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    ours = read_manifest(folder) is not None
    for path in found:
        if of_a_run(path.name) and (path.is_symlink() or not ours):
            problem = f"{folder} holds {path.name}, which reftrain did not write"
            raise ConfigError(field, problem, "move it away, or name another folder")
