"""Reads the mesh and the hosts from the manifest of a recorded run (`run.json`), and nothing else."""

import json
import re
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from tracekit.small_files import read_small
from tracekit.thresholds.ingest import MAX_RANKS, MAX_RUN_MANIFEST

MANIFEST = "run.json"
SCHEMA = "reftrain.run/"
RANK = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class RecordedRun:
    """The mesh of a recorded run and the host of each rank.

    mesh_hint: {"order": axes inner to outer, "sizes": size by axis}; None where the manifest holds no usable mesh.
    """

    mesh_hint: dict[str, Any] | None
    hosts: dict[int, str]


def recorded_run(folder: Path) -> RecordedRun | None:
    """Read `run.json` in `folder`; None where there is none, or it is unreadable, too large or of another schema."""
    path = folder / MANIFEST
    try:
        manifest = json.loads(read_small(path, MAX_RUN_MANIFEST).decode())
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(manifest, dict) or not str(manifest.get("schema", "")).startswith(SCHEMA):
        return None
    return RecordedRun(_mesh_hint(manifest.get("mesh")), _hosts(manifest.get("hosts")))


def _mesh_hint(mesh: Any) -> dict[str, Any] | None:
    order, sizes = (mesh.get("order"), mesh.get("sizes")) if isinstance(mesh, dict) else (None, None)
    if not isinstance(order, list) or not isinstance(sizes, dict):
        return None
    if not all(type(axis) is str for axis in order) or sorted(order) != sorted(sizes):
        return None
    if not all(type(n) is int and 0 < n <= MAX_RANKS for n in sizes.values()):
        return None
    if prod(sizes.values()) > MAX_RANKS:
        return None
    return {"order": order, "sizes": {axis: sizes[axis] for axis in order}}


def _hosts(hosts: Any) -> dict[int, str]:
    """Return host by rank, from a list by rank, an object by rank, or an object that lists ranks by host."""
    if isinstance(hosts, list):
        return {i: h for i, h in enumerate(hosts) if isinstance(h, str)}
    by_rank: dict[int, str] = {}
    for key, value in hosts.items() if isinstance(hosts, dict) else ():
        if isinstance(value, list):
            by_rank.update({r: key for r in value if type(r) is int})
        elif isinstance(value, str) and RANK.fullmatch(key):
            by_rank[int(key)] = value
    return by_rank
