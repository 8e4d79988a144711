"""Dumps of torch 2.1 and 2.2, which are a bare list of calls: made into the mapping that later versions write.

Such a dump names neither its rank (the file's name does), nor the members of its groups, nor types. The first group
that a process makes is that of all ranks, and has number 0. Each process numbers the others for itself, so that one
number may be of several groups: their members stay unknown. Source of the fields: torch/csrc/distributed/c10d/
TraceUtils.h of these versions. Part of `transfer`.
"""

from typing import Any, Final

from tracekit.dumps.fields import integer, text_of
from tracekit.thresholds.dumps import MAX_GROUP_NAME
from tracekit.units import NS_PER_US

BARE_VERSION: Final = "1"
"""The version of these dumps, which do not name one; later ones begin with 2.0."""
_FIELDS = {"profiling_name", "seq_id", "pg_id"}


def is_bare(decoded: Any) -> bool:
    """Return whether this is a list of calls, as torch 2.1 and 2.2 dump them; false for an empty list."""
    return (
        isinstance(decoded, (list, tuple))
        and bool(decoded)
        and all(isinstance(entry, dict) and entry.keys() >= _FIELDS for entry in (decoded[0], decoded[-1]))
    )


def with_groups(entries: Any) -> dict[str, Any]:
    """Give such a dump as a mapping: the group of all ranks has its name, and times of issue are in ns."""
    return {"version": BARE_VERSION, "entries": [_entry(entry) for entry in entries]}


def _entry(entry: Any) -> Any:
    """Give a call with its group and its time; anything else as it is, to be counted as damaged."""
    if not isinstance(entry, dict):
        return entry
    number, issued = entry.get("pg_id"), integer(entry.get("time_created_us"))
    desc = "default_pg" if number == 0 else ""
    return {
        **entry,
        "process_group": (text_of(number, MAX_GROUP_NAME), desc),
        "time_created_ns": None if issued is None else issued * NS_PER_US,
    }
