"""The page of `tracekit mesh`: the mesh, the place of every rank, and the groups that show it."""

from typing import Any

from tracekit.findings.mesh import PlacesFinding
from tracekit.page.shell import About
from tracekit.report.html.answer import answer_page
from tracekit.report.html.cells import field_of
from tracekit.report.mesh import mesh_document_of, mesh_lines
from tracekit.report.slowrank_json import dumps
from tracekit.thresholds.report import PAGE_ROWS


def mesh_html(finding: PlacesFinding, about: About | None = None) -> str:
    """Return the page as text; the same arguments give the same bytes."""
    (word, headline), *lines = mesh_lines(finding)
    groups, lines = lines[: len(finding.groups)], lines[len(finding.groups) :]
    return answer_page(
        "mesh.html.j2",
        word=word,
        headline=headline,
        tone="calm",
        next_steps=["if this is not the job's mesh, name it with --mesh; tracekit slowrank and hang use it"],
        lines=[line for line in lines if not line[0].startswith("rank ")],
        document=("mesh", dumps(mesh_document_of(finding))),
        about=about,
        data=_field(finding),
        scripts=("ranks.js",),
        groups=groups[:PAGE_ROWS],
        groups_left=max(0, len(groups) - PAGE_ROWS),
    )


def _field(finding: PlacesFinding) -> dict[str, Any]:
    """Return what the script draws: each rank, its place, and whether it left a trace."""
    ranks = sorted(finding.coords)
    missing = {*finding.ranks.missing}
    places = {
        axis: [finding.coords[r].get(axis, -1) for r in ranks]
        for axis in reversed(finding.mesh.order)
        if finding.mesh.sizes[axis] > 1
    }
    return {
        **field_of(ranks, [None] * len(ranks), places),
        "named": [],
        "states": ["no trace" if r in missing else "read" for r in ranks],
    }
