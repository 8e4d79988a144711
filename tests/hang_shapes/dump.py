"""Dumps as files: pickle or JSON, of the recorder's versions."""

import json
import pickle
from collections.abc import Sequence
from pathlib import Path

from tests.hang_shapes.mesh import Group
from tests.hang_shapes.ring import Ring

THREADS, LIBRARY, COMM_LIBRARY, STATUS = (2, 5), (2, 9), (2, 10), (2, 1)
"""The versions that brought a thread's name, NCCL's version, its newer name, and the groups' status."""


def write(ring: Ring, own: Sequence[Group], folder: Path) -> None:
    """Write a rank's dump."""
    recorder, rank = ring.recorder, ring.host.program.rank
    document = content(ring, own)
    if recorder.json:
        (folder / f"{recorder.names}{rank}.json").write_text(json.dumps(document))
    else:
        (folder / f"{recorder.names}{rank}").write_bytes(pickle.dumps(document, protocol=2))


def content(ring: Ring, own: Sequence[Group]) -> dict[str, object]:
    """A dump as the recorder makes it."""
    recorder = ring.recorder
    document: dict[str, object] = {
        "version": ".".join(map(str, recorder.version)),
        "pg_config": {
            group.name: {"name": group.name, "desc": group.desc, "ranks": str(list(group.ranks))}
            for group in own
        },
    }
    if recorder.version >= COMM_LIBRARY:
        document["comm_lib_version"] = "2.27.5"
    elif recorder.version >= LIBRARY:
        document["nccl_version"] = "2.27.3"
    if recorder.version >= STATUS and recorder.status:
        document["pg_status"] = status(ring)
    entries = [entry(row, ring) for row in ring.entries]
    if recorder.active:
        entries = [row for row in entries if row["state"] != "completed"]
    if entries or not recorder.json:
        document["entries"] = entries
    return document


def status(ring: Ring) -> dict[str, dict[str, object]]:
    """Each group's progress, under its local number; JSON has text."""
    told: dict[str, dict[str, object]] = {}
    for name, count in ring.counts.items():
        numbers = {
            "last_enqueued_collective": count.enqueued,
            "last_started_collective": count.started,
            "last_completed_collective": count.completed,
        }
        told[str(ring.local[name])] = {
            key: str(value) if ring.recorder.json else value for key, value in numbers.items()
        }
    return told


def entry(row: dict[str, object], ring: Ring) -> dict[str, object]:
    """An entry as its version and format have it."""
    recorder = ring.recorder
    found = {key: value for key, value in row.items() if key != "where"}
    if recorder.version >= THREADS:
        found["thread_name"], found["thread_id"] = (
            "pt_main_thread",
            str(139000000000000 + ring.host.program.rank),
        )
    if recorder.json:
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            found[key] = found[key] or 0
    elif recorder.frames:
        found["frames"] = frames(str(row["where"]), str(row["profiling_name"]))
    return found


def frames(where: str, name: str) -> list[dict[str, object]]:
    """A stack, innermost frame first."""
    folder = "/usr/lib/python3.11/site-packages/torch/distributed"
    return [
        {
            "name": name.removeprefix("nccl:").split()[0],
            "filename": f"{folder}/distributed_c10d.py",
            "line": 2810,
        },
        {
            "name": where.rsplit(".", maxsplit=1)[-1],
            "filename": f"/job/model/{where.split('.', maxsplit=1)[0]}.py",
            "line": 60 + len(where),
        },
        {"name": "train_step", "filename": "/job/train.py", "line": 88},
        {"name": "main", "filename": "/job/train.py", "line": 20},
    ]


def numbered(groups: Sequence[Group], rank: int) -> tuple[list[Group], dict[str, int]]:
    """The groups of a rank, and the number that each has on it."""
    own = [group for group in groups if rank in group.ranks]
    return own, {group.name: number for number, group in enumerate(own)}
