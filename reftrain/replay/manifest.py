"""Reads what a recorded run computed from its run.json, and refuses what cannot be replayed, by name."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from reftrain.config.file import from_tables
from reftrain.config.run import RunConfig
from reftrain.errors import ReftrainError
from reftrain.schedule.registry import SCHEMES
from reftrain.thresholds import LARGEST_MANIFEST
from tracekit.small_files import read_small

SCHEMA: Final = "reftrain.run/1"
_KERNELS: Final = frozenset({"auto", "sdpa", "math", "flash", "documents"})
"""Kernels of attention that the replay computes."""

_PIPELINE: Final = (
    "schedule", "virtual_stages", "consecutive", "layers_per_stage", "balanced", "pipelines", "concatenation",
    "replica_sync",
)  # fmt: skip


class ReplayError(ReftrainError):
    """A run that cannot be replayed (exit 3); the message says why and what decides instead."""


def read_manifest(run: Path) -> dict[str, Any]:
    """Return run.json of a run folder; `ReplayError` where it is none of ours."""
    path = run / "run.json"
    try:
        found = json.loads(read_small(path, LARGEST_MANIFEST).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise ReplayError(f"{path}: unreadable ({error}); copy the run's manifest again") from error
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ReplayError(f"{path}: no manifest of {SCHEMA}; only reftrain's own runs can be replayed")
    return found


def configuration(manifest: Mapping[str, Any], out: Path) -> RunConfig:
    """Build the configuration of a run that is to be replayed; `ReplayError` where it cannot be."""
    config = described(manifest, out)
    reason = _refusal(config, manifest)
    if reason:
        raise ReplayError(f"this run cannot be replayed: {reason}; numerics ladder decides without a replay")
    return config


def described(manifest: Mapping[str, Any], out: Path) -> RunConfig:
    """Build the configuration that a manifest describes.

    `ConfigError` where it contradicts itself, `ReplayError` where a table is missing.
    """
    try:
        tables: dict[str, Any] = {
            "model": manifest["model"],
            "encoder": manifest.get("encoder", {}),
            "data": manifest["data"],
            "numerics": manifest["numerics"],
            "mesh": manifest["parallel"],
            "optimizer": manifest["optimizer"],
            "pipeline": {
                name: manifest["schedule"][name] for name in _PIPELINE if name in manifest["schedule"]
            },
            "run": {
                "steps": manifest["steps"],
                "seed": manifest["seeds"]["weights"],
                "threads": manifest.get("threads", 1),
                "device": "cpu",
                "out": str(out),
            },
        }
        return from_tables(tables)
    except (KeyError, TypeError, AttributeError) as error:
        raise ReplayError(f"run.json lacks {error}; copy the run's manifest again") from error


def _refusal(config: RunConfig, manifest: Mapping[str, Any]) -> str:
    """Why there is no matched baseline of a run; empty where there is one."""
    gpus = (manifest.get("fingerprint") or {}).get("gpus")
    if manifest.get("device") == "cuda" or (gpus and manifest.get("device") != "cpu"):
        return "it summed over NCCL, which does not record its order (run.device = cpu is replayed)"
    if not SCHEMES[config.pipeline.schedule].synchronous:
        known = ", ".join(sorted(name for name, scheme in SCHEMES.items() if scheme.synchronous))
        return f"the order of sums of its schedule {config.pipeline.schedule} has no counterpart here ({known} have)"
    if config.pipeline.concatenation == "doubling":
        return "chimera's doubling, which computes forwards twice, has no counterpart here (direct and halving have)"
    if config.numerics.attention not in _KERNELS:
        known = ", ".join(sorted(_KERNELS))
        return f"its attention kernel {config.numerics.attention} has no counterpart here ({known} have)"
    return ""
