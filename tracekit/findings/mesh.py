"""The answer of `tracekit mesh` as data (contract `tracekit.mesh/1`)."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from tracekit.findings.shared import Columns, MeshFinding, Quality, RankCoverage, Row, Tabular, placed, places


@dataclass(frozen=True)
class GroupsAlong:
    """Process groups of one size that lie along the same axes.

    axes: from inner to outer; more than one if a group joins them (`dp`, `cp`), empty if no choice of axes gives the
    members. size: members of a group. groups: their number. example: members of the first. descs: their names in the
    files. operations: collectives that run in them. collectives, messages: most calls of one rank in one group. named:
    whether files name the members; else operations do.
    """

    axes: tuple[str, ...]
    size: int
    groups: int
    example: tuple[int, ...]
    descs: tuple[str, ...]
    operations: tuple[str, ...]
    collectives: int
    messages: int
    named: bool


@dataclass(frozen=True)
class PlacesFinding(Tabular):
    """The answer of `tracekit mesh`: the axes, the groups that show them, and the place of each rank of the job."""

    ranks: RankCoverage
    mesh: MeshFinding
    groups: tuple[GroupsAlong, ...]
    coords: dict[int, dict[str, int]]
    quality: tuple[Quality, ...] = ()
    notes: tuple[str, ...] = field(default=())

    def columns(self) -> Columns:
        """A rank of the job a row, with its place."""
        return {"rank": "int64", **places(self.mesh)}

    def rows(self) -> Iterator[Row]:
        """The ranks in order."""
        for rank, at in sorted(self.coords.items()):
            yield rank, *placed(at, self.mesh)

    def headline(self) -> str:
        """The mesh, inner to outer."""
        return self.mesh.written()
