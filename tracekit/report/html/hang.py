"""The page of `tracekit hang`: the culprit and the next step, the map of the mesh by state, stacks and groups."""

import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from tracekit.findings.hang import Culprit, GroupFrontier, HangFinding
from tracekit.findings.picture import HangPicture
from tracekit.page.shell import About
from tracekit.report.hang import TITLES, hang_document, next_steps
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
from tracekit.report.html.answer import answer_page
from tracekit.report.html.cells import field_of
from tracekit.report.shared_text import Line, mesh_line, quality_lines, ranks_line, rejected_lines
from tracekit.report.slowrank_json import dumps
from tracekit.text import plain
from tracekit.thresholds.report import PAGE_ROWS

_TONES: Final = {"none": "calm", "inconclusive": "open"}
_OF_TORCH: Final = re.compile(r"(?:^|[/\\](?:site-packages|dist-packages|pytorch)[/\\])torch[/\\]")
"""A frame whose file lies in torch: where it is installed, in its own checkout, or with its folder cut off."""


def hang_html(finding: HangFinding, picture: HangPicture, about: About | None = None) -> str:
    """Return the page as text; the same arguments give the same bytes."""
    return answer_page(
        "hang.html.j2",
        word=TITLES[finding.verdict].upper(),
        headline=finding.reason,
        tone=_TONES.get(finding.verdict, "blames"),
        next_steps=next_of(finding),
        lines=hang_lines(finding),
        document=("hang", dumps(hang_document(finding))),
        about=about,
        data=_field(finding, picture),
        scripts=("ranks.js",),
        picture=picture,
        culprits=[_culprits(same) for same in folded(finding.culprits)[:PAGE_ROWS]],
        calls=[
            (_title(title), [(side_ranks(side), side.text, side.place or "") for side in sides])
            for title, sides in calls_shown(finding)[:PAGE_ROWS]
        ],
        stacks=[
            (_title(title), frames_of(stack)) for title, stack in stacks_of(finding.culprits)[:PAGE_ROWS]
        ],
        groups=[_group(g) for g in finding.groups[:PAGE_ROWS]],
        groups_left=max(0, len(finding.groups) - PAGE_ROWS),
    )


def frames_of(stack: Sequence[str]) -> list[tuple[bool, list[str]]]:
    """Return the frames in their order, those of torch that follow one another together: (of torch, frames)."""
    return [(of_torch, list(run)) for of_torch, run in groupby(stack, lambda f: bool(_OF_TORCH.search(f)))]


def next_of(finding: HangFinding) -> list[str]:
    """Return what to look at: a sentence for each way in which ranks failed, or what decides an open answer."""
    if finding.culprits:
        return next_steps(finding.culprits)
    if finding.to_decide:
        return [finding.to_decide]
    if finding.verdict == "none":
        return ["nothing to fix; if the job still makes no progress, take a py-spy dump of each rank"]
    return []


def hang_lines(finding: HangFinding) -> list[Line]:
    """Return what the answer rests on, how many ranks wait, and repairs, doubts and assumptions."""
    lines = [("ranks", ranks_line(finding.ranks))]
    if finding.mesh is not None:
        lines.append(("mesh", mesh_line(finding.mesh)))
    if finding.candidates:
        lines.append(("candidates", some_ranks("ranks ", finding.candidates)))
    if finding.culprits and finding.to_decide and finding.to_decide not in finding.reason:
        lines.append(("to decide", finding.to_decide))
    if finding.victims:
        lines.append(("waiting", f"{len(finding.victims)} ranks: " + some_ranks("", finding.victims)))
    return [
        *lines,
        *quality_lines(finding.quality, verbose=True),
        *rejected_lines(finding.ranks, verbose=True),
        *(("note", note) for note in finding.notes),
    ]


def _field(finding: HangFinding, picture: HangPicture) -> dict[str, Any]:
    """Return what the script draws: each rank, its place and state, and the last collective that it completed."""
    done = {d.rank: f"{d.op or 'call'} {d.seq} of group {d.group}" for d in finding.last_done}
    return {
        **field_of(picture.ranks, picture.hosts, picture.places),
        "named": [c.rank for c in finding.culprits],
        "states": list(picture.states),
        "done": [plain(done.get(r, "")) for r in picture.ranks],
    }


def _title(text: str) -> str:
    return text[0].upper() + text[1:]


def _culprits(same: Sequence[Culprit]) -> dict[str, Any]:
    """Return a row of the table of culprits, of ranks that failed alike; an unknown frontier is a dash."""
    culprit = same[0]
    known = culprit.last_enqueued is not None
    return {
        "ranks": some_ranks("", (c.rank for c in same)),
        "host": hosts_text(same) or "–",
        "how": kind_text(culprit),
        "call": call_text(culprit.collective) if culprit.group.ranks else "–",
        "group": groups_text(same) if culprit.group.ranks else "–",
        "issued": least_most(c.last_enqueued for c in same) if known else "–",
        "of": max(c.group_enqueued for c in same) if known else "–",
        "done": least_most(c.last_completed for c in same) if known else "–",
    }


def _group(row: GroupFrontier) -> dict[str, Any]:
    """Return a row of the table of groups."""
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
