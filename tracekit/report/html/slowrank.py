"""The page of `tracekit slowrank`: what the text says, and the pictures behind it."""

from collections.abc import Sequence
from math import isfinite
from typing import Any

import numpy as np

from tracekit.findings import SlowRankFinding, Suspect
from tracekit.findings.picture import F64, SlowRankPicture, Timeline
from tracekit.report.html.page import render
from tracekit.report.slowrank_text import slowrank_lines
from tracekit.text import plain
from tracekit.thresholds.report import MAP_CELLS


def slowrank_html(finding: SlowRankFinding, picture: SlowRankPicture) -> str:
    """The page as text; the same finding and picture give the same bytes."""
    (title, headline), *lines = slowrank_lines(finding, verbose=True)
    return render(
        "slowrank.html.j2",
        _data(finding, picture),
        title=f"{title}: {headline}",
        verdict=finding.verdict,
        word=title,
        headline=headline,
        lines=[line for line in lines if line[0] not in _BELOW],
        below=[(name, [text for label, text in lines if label == name]) for name in _BELOW],
        prices=[_price(s) for s in (*finding.suspects, *finding.candidates)],
        path=finding.path,
        picture=picture,
    )


_BELOW = ("evidence", "quality", "rejected", "note")
"""Labels whose lines have sections of their own."""


def _data(finding: SlowRankFinding, picture: SlowRankPicture) -> dict[str, Any]:
    """What the script draws; times in ms, rounded to 1 µs."""
    blocks = _blocks(picture.steps, max(len(picture.ranks), 1))
    return {
        "ranks": list(picture.ranks),
        "hosts": [None if h is None else plain(h) for h in picture.hosts],
        "places": {axis: list(index) for axis, index in picture.places.items()},
        "named": [s.rank for s in (*finding.suspects, *finding.candidates)],
        "steps": [_steps(picture.steps, block) for block in blocks],
        "maps": {
            "own time beyond the peers": _columns(picture.excess, blocks),
            "stood still for communication": _columns(picture.stood, blocks),
        },
        "parts": {kind: _rounded(spent) for kind, spent in picture.parts.items()},
        "levels": [
            {
                "axis": level.axis,
                "chosen": level.chosen,
                "indices": list(level.indices),
                "spread": [[_number(v) for v in five] for five in level.spread],
            }
            for level in picture.levels
        ],
        "timeline": None if picture.timeline is None else _timeline(picture.timeline),
    }


def _blocks(steps: Sequence[int], ranks: int) -> list[slice]:
    """Columns of a heat map: steps, or blocks of consecutive ones where all of them would be too many cells."""
    width = -(-len(steps) * ranks // MAP_CELLS) if steps else 1
    return [slice(i, i + width) for i in range(0, len(steps), max(width, 1))]


def _steps(steps: Sequence[int], block: slice) -> str:
    first, *rest = steps[block]
    return f"{first}-{rest[-1]}" if rest else str(first)


def _columns(values: F64, blocks: Sequence[slice]) -> list[list[float | None]]:
    """One list a rank: the mean of each block of columns; None where nothing is known."""
    columns = []
    for block in blocks:
        known = np.isfinite(values[:, block])
        total = np.where(known, values[:, block], 0.0).sum(axis=1)
        count = known.sum(axis=1)
        columns.append(np.where(count > 0, total / np.maximum(count, 1), np.nan))
    return [_rounded(row) for row in np.stack(columns, axis=1)] if columns else []


def _rounded(values: F64) -> list[float | None]:
    return [_number(v) for v in values.tolist()]


def _number(value: float) -> float | None:
    return round(value, 3) if isfinite(value) else None


def _timeline(timeline: Timeline) -> dict[str, Any]:
    return {
        "step": timeline.step,
        "ranks": list(timeline.ranks),
        "rows": [
            {
                "rank": row.rank,
                "kind": row.kind,
                "begin": [_number(v) for v in row.begin],
                "length": [_number(v) for v in row.length],
            }
            for row in timeline.rows
        ],
    }


def _price(suspect: Suspect) -> dict[str, Any]:
    """A row of the table of prices; unknown ends of an interval are dashes."""
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
