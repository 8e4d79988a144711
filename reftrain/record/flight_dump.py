"""Contents of a flight-recorder dump on Gloo: torch's own entries, completed with what torch leaves out."""

import functools
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from reftrain.record.last_calls import status
from reftrain.thresholds import FREE_GROUP_NUMBER

WATCHER: Final = "reftrain/record/collectives.py"
"""The frame between a call and torch on the stack; it is not part of the job."""


def complete(
    native: dict[str, Any],
    p2p: list[dict[str, Any]],
    groups: Sequence[Mapping[str, object]],
    ended: dict[str, int] | None = None,
) -> dict[str, Any]:
    """Return torch's dump with sends and receives, process groups and completion filled in.

    `ended` has the number, by group name, up to which all collectives are known to have ended: on a busy machine torch
    now and then forgets to retire one.
    """
    collectives = _retired(native.get("entries", []), ended or {})
    ids = {entry["process_group"][0]: entry["pg_id"] for entry in collectives}
    for row in groups:
        ids.setdefault(
            str(row["pg_name"]), len(ids) + FREE_GROUP_NUMBER
        )  # no collective yet: any free number
    return {
        "version": native.get("version", "2.10"),
        "comm_lib_version": native.get("comm_lib_version", ""),
        "pg_config": {
            str(row["pg_name"]): {
                "name": str(row["pg_name"]),
                "desc": str(row["pg_desc"]),
                "ranks": str(row["ranks"]),
            }
            for row in groups
        },
        "pg_status": status(native.get("pg_status", {}), collectives),
        "entries": _in_order(collectives, p2p, ids),
    }


def _retired(entries: list[dict[str, Any]], ended: dict[str, int]) -> list[dict[str, Any]]:
    """Return torch's collectives, those marked as completed that have ended."""
    return [
        {**entry, "state": "completed", "retired": True}
        if entry["retired"] or entry["collective_seq_id"] <= ended.get(entry["process_group"][0], 0)
        else entry
        for entry in entries
    ]


def _in_order(
    collectives: list[dict[str, Any]], p2p: list[dict[str, Any]], ids: dict[str, int]
) -> list[dict[str, Any]]:
    """Return collectives and messages as one list by time, numbered, with short file names."""
    messages = [
        {**e, "pg_id": ids.get(e["process_group"][0], 0), "collective_seq_id": 0, "timeout_ms": 0}
        for e in p2p
    ]
    entries = [{**entry, "frames": relative(entry.get("frames", []))} for entry in [*collectives, *messages]]
    entries.sort(key=lambda entry: entry["time_created_ns"])
    for number, entry in enumerate(entries):
        entry["record_id"] = number
    return entries


def ended_well(work: Any) -> bool:
    """Whether a work that is completed has no error: one that raised counts as completed, too."""
    try:
        work.get_future().value()
    except RuntimeError:
        return False
    return True


def relative(frames: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Frames with file names as Python imports them (`torch/…`, `reftrain/…`): shorter, and alike on all hosts."""
    found = [
        _frame(frame.get("name", ""), frame.get("filename", ""), frame.get("line", 0)) for frame in frames
    ]
    return found[1:] if found and found[0]["filename"] == WATCHER else found


@functools.cache  # one object for each place, which the pickle then holds once
def _frame(name: str, filename: str, line: int) -> dict[str, Any]:
    # an editable install is on no path, hence the package's own parent
    roots = {os.path.abspath(root or os.curdir) + os.sep for root in [*sys.path, os.curdir]}  # noqa: PTH100
    roots.add(f"{Path(__file__).parents[2]}{os.sep}")
    inside = [root for root in roots if filename.startswith(root)]
    return {
        "name": name,
        "filename": filename.removeprefix(max(inside, key=len)) if inside else filename,
        "line": line,
    }


def oldest_pending_s(entries: list[dict[str, Any]], now_ns: int) -> float:
    """Seconds since the oldest call that is still pending was made.

    A call with a completed successor in its group is done, whatever its own state says: torch does not retire
    calls with a dropped work.
    """
    done: set[tuple[str, bool]] = set()
    oldest = now_ns
    for entry in reversed(entries):
        key = (entry["process_group"][0], entry["is_p2p"])
        if entry["retired"]:
            done.add(key)
        elif key not in done:
            oldest = min(oldest, entry["time_created_ns"])
    return (now_ns - oldest) / 1e9
