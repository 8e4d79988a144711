"""The result of reading one file: plain data, since it travels from worker processes to the merge."""

from dataclasses import dataclass
from typing import Any, Literal

from tracekit.findings import Quality

Status = Literal["ok", "rejected", "foreign"]
FLIGHT_RECORDER = "flight_recorder"
"""Name of the format of flight-recorder dumps, which several readers meet."""

UNKNOWN_RANK = "its rank is unknown: {}; rename it to say rank_<n>"
"""Reason of a rejected file, with why no rank is known."""


@dataclass(frozen=True)
class FileGroup:
    """A process group of one file; the events' `group` column holds positions in a tuple of these.

    ranks: sorted.
    """

    ranks: tuple[int, ...]
    names: tuple[str, ...]
    descs: tuple[str, ...]


@dataclass(frozen=True)
class RankTable:
    """Events of one rank of one file, written to `path`."""

    rank: int
    path: str
    events: int
    first: int  # start of the first event, ns
    last: int  # start of the last event, ns
    host: str | None
    world_size: int | None
    truncated: bool
    groups: tuple[FileGroup, ...]
    not_stored: dict[str, int]  # events of other phases: instants, flows, counters, metadata
    steps: frozenset[int] = (
        frozenset()
    )  # numbers of the profiler steps marked on the host, as far as they are few
    base: int | None = 0  # what the file's base time added to its times, ns; None where that is not readable
    parts: int = 1  # number of files with events in `path`: several in a run that is appended to, 0 for none
    device: str = (
        ""  # the name of its devices, as the file gives it; empty where unknown, or where they differ
    )


@dataclass(frozen=True)
class FileResult:
    """One input file: its tables, or why it has none.

    status: "foreign" is a file of another kind, which is no error where the user named only its folder.
    format: name of an entry of `readers.FORMATS`; empty where unknown. rank: of a rejected file, where known.
    mesh_hint: {"order": axes inner to outer, "sizes": size by axis}, if the file itself holds it.
    """

    label: str
    status: Status
    reason: str = ""
    rank: int | None = None
    format: str = ""
    sha256: str = ""
    bytes: int = 0
    tables: tuple[RankTable, ...] = ()
    quality: tuple[Quality, ...] = ()
    mesh_hint: dict[str, Any] | None = None

    @property
    def rank_unknown(self) -> bool:
        """Return whether a file that was read names no rank: its table is rank 0's, and `reason` says why."""
        return self.status == "ok" and bool(self.reason)


def dump_among_traces(label: str, rank: int | None = None) -> FileResult:
    """Return the result for a flight-recorder dump, which is set aside: dumps are read together, apart from traces."""
    reason = "this is a flight-recorder dump; give dumps apart from traces"
    return FileResult(label, "foreign", reason, rank, FLIGHT_RECORDER)
