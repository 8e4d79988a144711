"""Single fields of a dump, read with bounds: numbers, hosts, frames, names of sends, and the status by group.

Part of `flight_entry`.
"""

import re
from typing import Any

from tracekit.dumps.rank_dump import DONE, MAX_GROUPS, SCHEDULED, STARTED, RankDump

P2P_NAME = re.compile(r"(send|recv) (\d{1,7})(->|<-)(\d{1,7})$")


def fill_status(result: RankDump, status: Any, ids: dict[int, int], index: dict[str, int]) -> None:
    """Map `pg_status`, keyed by local pg_id, to groups: by entries, failing them by order of creation.

    Groups are numbered in the order in which they are made, names and local ids alike, so that where both
    lists
    are complete and numeric they pair up in order; any entry that contradicts undoes that.
    """
    if not isinstance(status, dict) or not status:
        return
    frontiers: dict[int, tuple[int, int]] = {}
    for key, value in list(status.items())[:MAX_GROUPS]:
        number = integer(key)
        if number is None or not isinstance(value, dict):
            continue
        enqueued, completed = (integer(value.get(f"last_{k}_collective")) for k in ("enqueued", "completed"))
        if enqueued is not None and completed is not None:
            frontiers[number] = (enqueued, completed)
    result.has_status = bool(frontiers)
    known = {k: v for k, v in ids.items() if k in frontiers}
    names = [n for n in index if n.isdecimal() and n.isascii() and len(n) < 10]
    if len(names) == len(index) == len(frontiers):
        paired = {i: index[n] for i, n in zip(sorted(frontiers), sorted(names, key=int), strict=True)}
        if all(paired[i] == g for i, g in known.items()):
            known = paired
    for number, group in known.items():
        result.groups[group].status_enqueued, result.groups[group].status_completed = frontiers[number]
    result.unmapped_status = sum(1 for i, (e, _) in frontiers.items() if i not in known and e > 0)


def completed_entry(entry: Any) -> dict[str, Any]:
    """Complete an entry of an early version: p2p is told by its name, `retired` by its state."""
    name = entry["profiling_name"]
    pg_id = entry.get("pg_id", 0)
    seq = entry.get("collective_seq_id", entry.get("seq_id"))
    return {
        "process_group": (str(pg_id), ""),
        "pg_id": pg_id,
        "is_p2p": P2P_NAME.search(name) is not None,
        "retired": False,
        "state": "scheduled",
        "time_discovered_completed_ns": None,
        "p2p_seq_id": seq,
        **entry,
        "collective_seq_id": seq,
    }


def state_of(entry: dict[str, Any]) -> int:
    """Give SCHEDULED, STARTED or DONE of an entry; KeyError where it does not tell."""
    if entry["retired"] or entry["state"] == "completed" or entry["time_discovered_completed_ns"]:
        return DONE
    return STARTED if entry["state"] == "started" else SCHEDULED


def host_of(dump: dict[Any, Any]) -> str | None:
    """Give the host that the dump names."""
    for key in ("hostname", "host", "host_name"):
        value = dump.get(key)
        if isinstance(value, str) and value:
            return value[:200]
    return None


def frame_text(frame: Any) -> str:
    """Give a frame as `file:line function`; nothing for what is no frame."""
    if not isinstance(frame, dict):
        return ""
    return f"{str(frame.get('filename'))[:300]}:{str(frame.get('line'))[:12]} {str(frame.get('name'))[:200]}"


def integer(value: Any) -> int | None:
    """Read an integer below 2**62, also as text (the JSON form quotes some); else None."""
    if type(value) is str and len(value) < 20:
        try:
            value = int(value)
        except ValueError:
            return None
    return value if type(value) is int and abs(value) < 1 << 62 else None


def number(value: Any) -> float:
    """Read a number below 1e15; NaN for anything else."""
    return float(value) if type(value) in {int, float} and abs(value) < 1e15 else float("nan")
