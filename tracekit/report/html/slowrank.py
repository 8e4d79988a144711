"""The page of `tracekit slowrank`: the words of the text, and its charts."""

from dataclasses import replace
from typing import Any

from tracekit.findings import SlowRankFinding, Suspect
from tracekit.findings.picture import SlowRankPicture, Timeline
from tracekit.report.html.cells import blocks_of, columns_of, number, rounded, steps_text
from tracekit.report.html.page import below, render
from tracekit.report.slowrank_text import slowrank_lines
from tracekit.text import plain


def slowrank_html(finding: SlowRankFinding, picture: SlowRankPicture) -> str:
    """Return the page as text; the same finding and picture give the same bytes."""
    (title, headline), *lines = slowrank_lines(replace(finding, explanation=None), verbose=True)
    return render(
        "slowrank.html.j2",
        _data(finding, picture),
        title=f"{title}: {headline}",
        verdict=finding.verdict,
        word=title,
        headline=headline,
        **below(lines),
        prices=[_price(s) for s in (*finding.suspects, *finding.candidates)],
        path=finding.path,
        picture=picture,
        explanation=finding.explanation,
    )


def _data(finding: SlowRankFinding, picture: SlowRankPicture) -> dict[str, Any]:
    """The data that the script draws; times in ms, rounded to 1 µs."""
    blocks = blocks_of(picture.steps, max(len(picture.ranks), 1))
    return {
        "ranks": list(picture.ranks),
        "hosts": [None if h is None else plain(h) for h in picture.hosts],
        "places": {axis: list(index) for axis, index in picture.places.items()},
        "named": [s.rank for s in (*finding.suspects, *finding.candidates)],
        "steps": [steps_text(picture.steps, block) for block in blocks],
        "maps": {
            "own time beyond the peers": columns_of(picture.excess, blocks),
            "stood still for communication": columns_of(picture.stood, blocks),
        },
        "parts": {kind: rounded(spent) for kind, spent in picture.parts.items()},
        "levels": [
            {
                "axis": level.axis,
                "chosen": level.chosen,
                "indices": list(level.indices),
                "spread": [[number(v) for v in five] for five in level.spread],
            }
            for level in picture.levels
        ],
        "timeline": None if picture.timeline is None else _timeline(picture.timeline),
    }


def _timeline(timeline: Timeline) -> dict[str, Any]:
    return {
        "step": timeline.step,
        "ranks": list(timeline.ranks),
        "rows": [
            {
                "rank": row.rank,
                "kind": row.kind,
                "begin": [number(v) for v in row.begin],
                "length": [number(v) for v in row.length],
            }
            for row in timeline.rows
        ],
    }


def _price(suspect: Suspect) -> dict[str, Any]:
    """The row of the table of prices; unknown ends of an interval are dashes."""
    return {
        "rank": suspect.rank,
        "host": suspect.host or "–",
        "place": ", ".join(f"{axis} {index}" for axis, index in suspect.coords.items()),
        "lost": f"{suspect.lost_ms_per_step:.1f}",
        "low": "–" if suspect.lost_ms_low is None else f"{suspect.lost_ms_low:.1f}",
        "high": "–" if suspect.lost_ms_high is None else f"{suspect.lost_ms_high:.1f}",
        "confidence": f"{suspect.confidence:.2f}",
        "cause": suspect.cause,
        "evidence": [
            (e.what, f"{e.value:.2f}", "–" if e.peers_median is None else f"{e.peers_median:.2f}", e.unit)
            for e in suspect.evidence
        ],
    }
