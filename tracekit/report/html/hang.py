"""The page of `tracekit hang`: the words of the text, and a map of all ranks on the mesh."""

from collections.abc import Sequence
from typing import Any

from tracekit.findings.hang import Culprit, GroupFrontier, HangFinding
from tracekit.findings.picture import HangPicture
from tracekit.report.hang import TITLES
from tracekit.report.hang_words import (
    call_text,
    calls_shown,
    folded,
    groups_text,
    hosts_text,
    kind_text,
    least_most,
    side_ranks,
    some_ranks,
    span,
    stacks_of,
)
from tracekit.report.html.page import render
from tracekit.report.shared_text import Line, mesh_line, quality_lines, ranks_line, rejected_lines
from tracekit.text import plain
from tracekit.thresholds.report import PAGE_ROWS


def hang_html(finding: HangFinding, picture: HangPicture) -> str:
    """Return the page as text; the same finding and picture give the same bytes."""
    return render(
        "hang.html.j2",
        {"mesh": _field(finding, picture)},
        title=f"{TITLES[finding.verdict]}: {finding.reason}",
        verdict=finding.verdict,
        word=TITLES[finding.verdict].upper(),
        headline=finding.reason,
        lines=_lines(finding),
        below=[
            ("quality", [text for _, text in quality_lines(finding.quality, verbose=True)]),
            ("rejected", [text for _, text in rejected_lines(finding.ranks, verbose=True)]),
            ("note", finding.notes),
        ],
        picture=picture,
        culprits=[_culprits(same) for same in folded(finding.culprits)[:PAGE_ROWS]],
        calls=[
            (_title(title), [(side_ranks(side), side.text, side.place or "") for side in sides])
            for title, sides in calls_shown(finding)[:PAGE_ROWS]
        ],
        stacks=[(_title(title), stack) for title, stack in stacks_of(finding.culprits)[:PAGE_ROWS]],
        groups=[_group(g) for g in finding.groups[:PAGE_ROWS]],
        groups_left=max(0, len(finding.groups) - PAGE_ROWS),
    )


def _lines(finding: HangFinding) -> list[Line]:
    """The lines on what the answer rests on, and on the number of waiting ranks."""
    lines = [("ranks", ranks_line(finding.ranks))]
    if finding.mesh is not None:
        lines.append(("mesh", mesh_line(finding.mesh)))
    if finding.candidates:
        lines.append(("candidates", some_ranks("ranks ", finding.candidates)))
    if finding.to_decide and finding.to_decide not in finding.reason:
        lines.append(("to decide", finding.to_decide))
    if finding.victims:
        lines.append(("waiting", f"{len(finding.victims)} ranks: " + some_ranks("", finding.victims)))
    return lines


def _field(finding: HangFinding, picture: HangPicture) -> dict[str, Any]:
    """The data that the script draws: each rank, its place and state, and the last collective that it completed."""
    done = {d.rank: f"{d.op or 'call'} {d.seq} of group {d.group}" for d in finding.last_done}
    return {
        "ranks": list(picture.ranks),
        "hosts": [None if h is None else plain(h) for h in picture.hosts],
        "places": {axis: list(index) for axis, index in picture.places.items()},
        "states": list(picture.states),
        "done": [plain(done.get(r, "")) for r in picture.ranks],
    }


def _title(text: str) -> str:
    return text[0].upper() + text[1:]


def _culprits(same: Sequence[Culprit]) -> dict[str, Any]:
    """The row of the table of culprits for ranks with equal failures; an unknown frontier is a dash."""
    culprit = same[0]
    known = culprit.last_enqueued is not None
    return {
        "ranks": some_ranks("", (c.rank for c in same)),
        "host": hosts_text(same) or "–",
        "how": kind_text(culprit),
        "call": call_text(culprit.collective),
        "group": groups_text(same),
        "issued": least_most(c.last_enqueued for c in same) if known else "–",
        "of": max(c.group_enqueued for c in same) if known else "–",
        "done": least_most(c.last_completed for c in same) if known else "–",
    }


def _group(row: GroupFrontier) -> dict[str, Any]:
    """The row of the table of groups."""
    dim = f" [{row.group.dim}]" if row.group.dim else ""
    return {
        "name": f"{row.group.name} {row.group.desc}{dim}",
        "ranks": some_ranks("", row.group.ranks),
        "issued": span(row.enqueued),
        "done": span(row.completed),
        "waiting": row.waiting,
        "behind": some_ranks("", row.behind),
        "missing": some_ranks("", row.missing),
    }
