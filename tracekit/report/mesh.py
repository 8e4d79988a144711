"""`tracekit mesh` as lines of text and as JSON (contract `tracekit.mesh/1`), from one finding."""

from typing import Literal, TypedDict

from tracekit.findings.mesh import GroupsAlong, PlacesFinding
from tracekit.report.documents import MeshDocument, Place, QualityDocument, RanksDocument
from tracekit.report.shared_text import Line, mesh_line, numbers, quality_lines, ranks_line, rejected_lines
from tracekit.report.slowrank_json import mesh_document, quality_document, ranks_document
from tracekit.text import plain
from tracekit.thresholds.report import ROWS_SHOWN


class AlongDocument(TypedDict):
    """Process groups of one size along the same axes (none where no choice of axes gives their members)."""

    axes: list[str]
    size: int
    groups: int
    example: list[int]
    descs: list[str]
    operations: list[str]
    collectives: int
    messages: int
    named: bool


class PlacesDocument(TypedDict):
    """The answer of `tracekit mesh`; `coords` has every rank of the job, as text."""

    schema: Literal["tracekit.mesh/1"]
    ranks: RanksDocument
    mesh: MeshDocument
    groups: list[AlongDocument]
    coords: dict[str, Place]
    quality: list[QualityDocument]
    notes: list[str]


def mesh_document_of(finding: PlacesFinding) -> PlacesDocument:
    """Return the finding as a JSON-ready dict; `coords` has ranks as text, because JSON has no other keys."""
    return {
        "schema": "tracekit.mesh/1",
        "ranks": ranks_document(finding.ranks),
        "mesh": mesh_document(finding.mesh),
        "groups": [_group(g) for g in finding.groups],
        "coords": {str(rank): place for rank, place in finding.coords.items()},
        "quality": [quality_document(q) for q in finding.quality],
        "notes": list(finding.notes),
    }


def _group(along: GroupsAlong) -> AlongDocument:
    return {
        "axes": list(along.axes),
        "size": along.size,
        "groups": along.groups,
        "example": list(along.example),
        "descs": list(along.descs),
        "operations": list(along.operations),
        "collectives": along.collectives,
        "messages": along.messages,
        "named": along.named,
    }


def mesh_lines(finding: PlacesFinding, *, verbose: bool = False) -> list[Line]:
    """Return the finding as pairs of label and text, the mesh first; `verbose` adds all ranks' places and all rows."""
    lines: list[Line] = [("MESH", mesh_line(finding.mesh))]
    lines.extend((_name(g), _in_words(g)) for g in finding.groups)
    places = list(finding.coords.items())
    for rank, place in places if verbose else places[:: max(1, len(places) - 1)][:2]:
        lines.append((f"rank {rank}", ", ".join(f"{axis} {at}" for axis, at in place.items())))
    lines.append(("ranks", ranks_line(finding.ranks)))
    lines.extend(rejected_lines(finding.ranks, verbose=verbose))
    lines.extend(quality_lines(finding.quality, verbose=verbose))
    lines.extend(("note", plain(note)) for note in finding.notes)
    return lines


def _name(along: GroupsAlong) -> str:
    return " × ".join(along.axes) or "no axis"


def _in_words(along: GroupsAlong) -> str:
    """The words on groups: their number, first members, names in files, and operations."""
    many = f"{along.groups} group{'s' if along.groups != 1 else ''} of {along.size}"
    called = ", ".join(plain(desc) for desc in along.descs[:ROWS_SHOWN] if desc)
    used = [", ".join(plain(op) for op in along.operations[:ROWS_SHOWN])] if along.operations else []
    if along.messages:
        used.append("messages")
    known = called if along.named else "named by no file, found from operations"
    where = f"{many}, as {numbers(along.example)}" + (f" ({known})" if known else "")
    return f"{where}: {'; '.join(used) or 'unused in these traces'}"
