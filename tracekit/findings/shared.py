"""Parts that every finding of tracekit has: the ranks read, rejected files, doubts, and the mesh."""

from dataclasses import dataclass, field
from typing import Literal

from tracekit.axes import PARTS

MeshSource = Literal["process_groups", "flag", "manifest", "flat_world"]
"""Where a mesh comes from: the process groups, the user, a manifest beside the traces, or assumed as one flat group."""


@dataclass(frozen=True)
class Rejected:
    """A file that could not be used, and why."""

    path: str
    reason: str
    rank: int | None = None


@dataclass(frozen=True)
class Quality:
    """One kind of repair or doubt about one file (or, with `path` None, about the run)."""

    kind: str
    path: str | None = None
    count: int = 0
    detail: str = ""
    kept_events: int | None = None


@dataclass(frozen=True)
class RankCoverage:
    """The ranks that the answer rests on: how many the job has, how many were read, and which are missing."""

    expected: int
    read: int
    missing: tuple[int, ...] = ()
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True)
class MeshFinding:
    """Axes from inner to outer, their sizes, where they come from, and sizes of axes that divide others (`parts`)."""

    order: tuple[str, ...]
    sizes: dict[str, int]
    source: MeshSource
    parts: dict[str, int] = field(default_factory=dict)

    def written(self) -> str:
        """The sizes as a line: inner to outer, then those of axes that divide the ranks of others."""
        sizes = ", ".join(f"{axis}={self.sizes[axis]}" for axis in self.order)
        return "; ".join(
            [sizes, *(f"{axis}={size} inside {PARTS[axis].inside}" for axis, size in self.parts.items())]
        )
