"""The result of reading one file: plain data, since it travels from worker processes to the merge."""

from dataclasses import dataclass
from functools import lru_cache
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

    def __reduce__(self) -> tuple[Any, ...]:
        """Return how it travels: each of 16 384 files has the group of all ranks, 50 KB where they are listed."""
        return _group_of, (_evenly_spaced(self.ranks), self.names, self.descs)


@lru_cache(256)
def _evenly_spaced(ranks: tuple[int, ...]) -> range | tuple[int, ...]:
    """Return members that lie at equal distances as a range, others as they are."""
    even = range(ranks[0], ranks[-1] + 1, ranks[1] - ranks[0]) if len(set(ranks[:2])) > 1 else range(0)
    return even if len(even) == len(ranks) and tuple(even) == ranks else ranks


@lru_cache(256)
def _listed(even: range) -> tuple[int, ...]:
    """Return the members in a range, the same object for equal ranges."""
    return tuple(even)


def _group_of(ranks: range | tuple[int, ...], names: tuple[str, ...], descs: tuple[str, ...]) -> FileGroup:
    """Return the group that `FileGroup.__reduce__` took apart."""
    return FileGroup(_listed(ranks) if isinstance(ranks, range) else ranks, names, descs)


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
