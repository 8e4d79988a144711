"""The rank, host and world size of a trace: from its content first, then from its name."""

import re
from collections.abc import Collection, Sequence
from typing import Any

from tracekit.text import plain
from tracekit.thresholds.ingest import MAX_DEVICE_NAME, MAX_RANKS, RANK_FOLDERS

RANK = re.compile(
    r"(?<![a-z0-9])(?P<scope>(?:local|node|dp|tp|pp|cp|ep|group)[-_]?)?(?:global[-_]?)?rank[-_]?(?P<n>\d{1,6})(?!\d)"
)
WORKER = re.compile(r"(?<![a-z0-9])worker[-_]?(?P<n>\d{1,6})(?!\d)")
SHORT = re.compile(r"(?<![a-z0-9])r[-_]?(?P<n>\d{1,6})(?![a-z0-9])")
HANDLER = re.compile(r"^(?P<host>.+)_(?P<pid>\d+)\.\d{9,19}\.pt\.trace\.json")
"""Names that torch.profiler.tensorboard_trace_handler gives: <host>_<pid>.<time>.pt.trace.json, in ms or ns.

Writers that follow it put seconds there, so those are read too.
"""


def rank_of_content(metadata: dict[str, Any]) -> int | None:
    """Return `distributedInfo.rank`; None where it is absent or no rank."""
    info = metadata.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    if isinstance(rank, str) and re.fullmatch(r"\d{1,9}", rank):
        rank = int(rank)
    return rank if type(rank) is int and 0 <= rank < MAX_RANKS else None


def rank_of_name(name: str, folders: Sequence[str] = ()) -> tuple[int | None, str]:
    """Return the rank in a file's name, else in those of its `folders` from within, or None and why there is none.

    In folders further out than the innermost one, only the word `rank` counts.

    rank3, rank_3, rank-3, worker3, r3 count; dates, process ids, local ranks and ranks within an axis do not,
    nor does a pod called worker-3 in the name that torch's own handler builds from host and process id.
    """
    for depth, text in enumerate([name.lower(), *(f.lower() for f in folders[:RANK_FOLDERS])]):
        for pattern in (RANK, WORKER, SHORT) if depth <= 1 else (RANK,):
            found = set()
            for match in pattern.finditer(text):
                handler = HANDLER.match(text)
                is_host = handler is not None and pattern is not RANK and match.end() == handler.end("host")
                if not is_host and not match.groupdict().get("scope"):
                    found.add(int(match["n"]))
            if len(found) > 1:
                return None, f"its name holds several ranks ({', '.join(map(str, sorted(found)))})"
            if found:
                return found.pop(), ""
    return None, "neither `distributedInfo.rank` in it nor a rank in its name"


def host_of(metadata: dict[str, Any], name: str) -> str | None:
    """Return the host that the file itself names, else the one in the name that torch's handler gave it, else None."""
    for key in ("host_name", "hostname", "host"):
        if isinstance(metadata.get(key), str) and metadata[key]:
            return str(metadata[key])
    handler = HANDLER.match(name)
    if handler is None:
        return None
    host = handler["host"].lower()
    if RANK.search(host) or any(m.end() < len(host) for m in WORKER.finditer(host)):
        return None  # a custom worker name with a rank in it is no host
    return handler["host"]


def device_of(metadata: dict[str, Any], used: Collection[int] = ()) -> str:
    """Return the name in `deviceProperties` of the devices that the rank `used`, of all where none of these is listed.

    Empty without a name, or where names differ.
    """
    listed = metadata.get("deviceProperties")
    known = [d for d in listed if isinstance(d, dict)] if isinstance(listed, list) else []
    mine = [d.get("name") for d in known if d.get("id") in used]
    names = mine or [d.get("name") for d in known]
    complete = bool(mine) or len(known) == len(listed or ())
    same = complete and bool(names) and isinstance(names[0], str) and names.count(names[0]) == len(names)
    return plain(str(names[0])[:MAX_DEVICE_NAME]) if same else ""


def world_size_of(metadata: dict[str, Any]) -> int | None:
    """Return `distributedInfo.world_size`; None where it is absent or no world size."""
    info = metadata.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return size if type(size) is int and 0 < size <= MAX_RANKS else None
