"""Single fields of a dump, read with bounds: numbers, hosts, frames, names of sends.

Part of `entries`.
"""

import re
from functools import lru_cache
from typing import Any

from tracekit.dumps.rank_dump import DONE, SCHEDULED, STARTED
from tracekit.thresholds.dumps import (
    MAX_DIGITS,
    MAX_DIMENSIONS,
    MAX_FILE_NAME,
    MAX_FUNCTION_NAME,
    MAX_GROUP_NAME,
    MAX_HOST_NAME,
    MAX_INTEGER,
    MAX_LINE_NUMBER,
    MAX_NUMBER,
    MAX_SHAPES,
)

STATES = {"scheduled": SCHEDULED, "started": STARTED, "completed": DONE}
P2P_NAME = re.compile(r"(send|recv) (\d{1,7})(->|<-)(\d{1,7})$")


@lru_cache(1 << 16)
def p2p_ends(name: str) -> tuple[bool, int, int] | None:
    """Give (send, own position, peer's position) from "nccl:send 0->1"; None where the name is another."""
    match = P2P_NAME.search(name)
    return (match[1] == "send", int(match[2]), int(match[4])) if match else None


def completed_entry(entry: Any) -> dict[str, Any]:
    """Return the completed entry of an early version: p2p follows from its name, `retired` from its state."""
    name = entry["profiling_name"]
    pg_id = entry.get("pg_id", 0)
    seq = entry.get("collective_seq_id", entry.get("seq_id"))
    return {
        "process_group": (text_of(pg_id, MAX_GROUP_NAME), ""),
        "pg_id": pg_id,
        "is_p2p": P2P_NAME.search(name) is not None,
        "retired": False,
        "state": "completed" if entry.get("time_discovered_completed_ns") else "scheduled",
        "time_discovered_completed_ns": None,
        "p2p_seq_id": seq,
        **entry,
        "collective_seq_id": seq,
    }


def state_of(entry: dict[str, Any]) -> int:
    """Return SCHEDULED, STARTED or DONE for an entry; KeyError or ValueError if it has none, or two.

    The recorder derives the state from the times: a call with a known end is never scheduled or started.
    """
    recorded, retired = entry["state"], entry["retired"]
    if type(retired) is not bool:
        raise ValueError("retired is not a truth value")
    state = STATES[recorded if type(recorded) is str else ""]  # a tree of tuples takes for ever to hash
    if state != DONE and integer(entry["time_discovered_completed_ns"]):
        raise ValueError("an end without its state")
    return DONE if retired else state


def host_of(dump: dict[Any, Any]) -> str | None:
    """Give the host that the dump names; None without one."""
    for key in ("hostname", "host", "host_name"):
        value = dump.get(key)
        if isinstance(value, str) and value:
            return value[:MAX_HOST_NAME]
    return None


def frame_text(frame: Any) -> str:
    """Give a frame as `file:line function`; an empty text for any other object."""
    if not isinstance(frame, dict):
        return ""
    sizes = {"filename": MAX_FILE_NAME, "line": MAX_LINE_NUMBER, "name": MAX_FUNCTION_NAME}
    file, line, name = (text_of(frame.get(key), most) for key, most in sizes.items())
    return f"{file}:{line} {name}"


def integer(value: Any) -> int | None:
    """Read an integer below 2**62, also as text (the JSON form quotes some); None for anything else."""
    if type(value) is str and len(value) < MAX_DIGITS:
        try:
            value = int(value)
        except ValueError:
            return None
    return value if type(value) is int and abs(value) < MAX_INTEGER else None


def text_of(value: Any, most: int) -> str:
    """Give the first `most` characters of a text, or of a number as text; nothing for anything else.

    A list is never made text: lists that share their parts are short in a file and endless as text.
    """
    if isinstance(value, str):
        return value[:most]
    return str(value)[:most] if type(value) is float or integer(value) is not None else ""


def listed(value: Any, most: int) -> str:
    """Give the shapes or dtypes of a call as text, as far as their first `most` numbers or names; "" where damaged."""
    if not isinstance(value, (list, tuple)):
        return text_of(value, most)
    left, kept = most, []
    for item in value[:most]:
        inner = item[:left] if isinstance(item, (list, tuple)) else [item]
        plain = [v[:most] if isinstance(v, str) else integer(v) for v in inner]
        if None in plain:
            return ""
        kept.append(plain if isinstance(item, (list, tuple)) else plain[0])
        left -= len(plain) + 1
        if left <= 0:
            break
    return str(kept)[:most]


def is_listed(value: Any) -> bool:
    """Whether `value` is a short list of shapes or of dtypes, so that to compare and to hash it is cheap."""
    return (
        type(value) in {list, tuple}
        and len(value) <= MAX_SHAPES
        and all(type(v) is str or (type(v) in {list, tuple} and _is_shape(v)) for v in value)
    )


def _is_shape(value: Any) -> bool:
    return len(value) <= MAX_DIMENSIONS and all(type(n) is int for n in value)


def number(value: Any) -> float:
    """Read a number below 1e15; NaN for anything else."""
    return float(value) if type(value) in {int, float} and abs(value) < MAX_NUMBER else float("nan")
