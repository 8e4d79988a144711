"""What reading one file yields: plain data, since it travels from worker processes to the merge."""

from dataclasses import dataclass
from typing import Any, Literal

from tracekit.findings import Quality

Status = Literal["ok", "rejected", "foreign"]


@dataclass(frozen=True)
class FileGroup:
    """A process group as one file tells it; the events' `group` column counts these."""

    ranks: tuple[int, ...]
    names: tuple[str, ...]
    descs: tuple[str, ...]


@dataclass(frozen=True)
class RankTable:
    """Events of one rank of one file, written to `path`."""

    rank: int
    path: str
    events: int
    first: int  # start of the first and of the last event, ns
    last: int
    host: str | None
    world_size: int | None
    truncated: bool
    groups: tuple[FileGroup, ...]
    not_stored: dict[str, int]  # events of other phases: instants, flows, counters, metadata


@dataclass(frozen=True)
class FileResult:
    """One input file: its tables, or why it has none."""

    label: str
    status: Status
    reason: str = ""
    rank: int | None = None  # of a rejected file, where known
    format: str = "kineto"
    sha256: str = ""
    bytes: int = 0
    tables: tuple[RankTable, ...] = ()
    quality: tuple[Quality, ...] = ()
    mesh_hint: dict[str, Any] | None = None
