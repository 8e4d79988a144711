"""The page of `tracekit slowrank`: the answer and its price, the map of the mesh, and the evidence behind them."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np

from tracekit.findings import SlowRankFinding, Suspect
from tracekit.findings.picture import SlowRankPicture, Timeline
from tracekit.page.palette import fill_of
from tracekit.page.scale import scale_of, whole
from tracekit.page.shell import About
from tracekit.report.html.answer import Price, answer_page, price_of
from tracekit.report.html.cells import blocks_of, field_of, number, rounded, shown_of, steps_text
from tracekit.report.shared_text import Line
from tracekit.report.slowrank_json import dumps, slowrank_document
from tracekit.report.slowrank_text import cost_of, next_step, slowrank_lines
from tracekit.text import plain, ranges
from tracekit.thresholds.report import PAGE_ROWS, RANK_RUNS_SHOWN
from tracekit.thresholds.slowrank import MIN_LOST_SHARE


def slowrank_html(finding: SlowRankFinding, picture: SlowRankPicture, about: About | None = None) -> str:
    """Return the page as text; the same arguments give the same bytes."""
    (title, headline), *lines = slowrank_lines(replace(finding, explanation=None), verbose=True)
    if finding.verdict == "inconclusive":
        headline = finding.reason
    threshold = MIN_LOST_SHARE * finding.what_if.step_ms
    return answer_page(
        "slowrank.html.j2",
        word=title,
        headline=headline,
        tone={"healthy": "calm", "inconclusive": "open"}.get(finding.verdict, "blames"),
        next_steps=next_of(finding),
        lines=[line for line in lines if not _is_above(finding, line)],
        document=("slowrank", dumps(slowrank_document(finding))),
        about=about,
        data=_data(finding, picture, threshold),
        scripts=("ranks.js",),
        price=_price_of_answer(finding),
        suspects=[_row(s, finding.what_if.step_ms) for s in finding.suspects[:PAGE_ROWS]],
        candidates=[_row(s, finding.what_if.step_ms) for s in finding.candidates[:PAGE_ROWS]],
        left=[max(0, len(named) - PAGE_ROWS) for named in (finding.suspects, finding.candidates)],
        cures=[(cure, ranges(sorted(cure.ranks))) for cure in finding.cures],
        network_parts=[(part, ranges(sorted(part.ranks))) for part in finding.network_parts],
        evidence=_evidence([*finding.suspects, *finding.candidates][:PAGE_ROWS]),
        threshold=f"{MIN_LOST_SHARE:.0%} of the step, {threshold:.1f} ms",
        path=finding.path,
        picture=picture,
        explanation=finding.explanation,
    )


def next_of(finding: SlowRankFinding) -> list[str]:
    """Return what to do: what decides an open answer, else what fixes the cause."""
    if finding.verdict == "inconclusive":
        return [finding.to_decide] if finding.to_decide else []
    if finding.verdict == "healthy" or finding.cause is None:
        return ["nothing to fix; tracekit breakdown shows what the step consists of"]
    return [next_step(finding)]


def _is_above(finding: SlowRankFinding, line: Line) -> bool:
    """Whether the head of the page, or a table of it, says what this line says."""
    elsewhere = ("next", "to decide", "suspect", "candidate", "cure")
    return (
        line[0] in elsewhere
        or line[0].startswith("rank ")
        or (finding.verdict == "inconclusive" and line[0] == "why")
    )


def _price_of_answer(finding: SlowRankFinding) -> Price | None:
    """Return what the headline says that the answer costs, with the interval of the first suspect."""
    if finding.verdict in ("healthy", "inconclusive"):
        return None
    first = finding.suspects[0] if finding.suspects else None
    low, high = (None, None) if first is None else (first.lost_ms_low, first.lost_ms_high)
    return price_of(cost_of(finding), low, high, finding.what_if.step_ms)


def _price(suspect: Suspect, step_ms: float) -> Price | None:
    return price_of(suspect.lost_ms_per_step, suspect.lost_ms_low, suspect.lost_ms_high, step_ms)


def _data(finding: SlowRankFinding, picture: SlowRankPicture, threshold: float) -> dict[str, Any]:
    """Return what the script draws; times in ms, rounded to 1 µs."""
    blocks = blocks_of(picture.steps, max(len(picture.ranks), 1))
    step = finding.what_if.step_ms
    excess = scale_of(picture.excess, threshold)
    outermost_first = dict(reversed(picture.places.items()))
    spread = [five for level in picture.levels for five in level.spread]
    return {
        **field_of(picture.ranks, picture.hosts, outermost_first),
        "named": [s.rank for s in (*finding.suspects, *finding.candidates)],
        "steps": [steps_text(picture.steps, block) for block in blocks],
        "what": [
            shown_of("own time beyond the peers", "culprit", excess, picture.excess, blocks),
            shown_of("waited for communication", "victim", whole(step), picture.stood, blocks),
        ],
        "parts": [
            {"name": kind, "fill": fill_of(kind), "values": rounded(spent)}
            for kind, spent in picture.parts.items()
        ],
        "whole": longest(list(picture.parts.values()), step),
        "levels": [
            {
                "axis": level.axis,
                "chosen": level.chosen,
                "indices": list(level.indices),
                "spread": [[number(v) for v in five] for five in level.spread],
            }
            for level in picture.levels
        ],
        "level_scale": scale_of(spread, threshold).document(),
        "timeline": None if picture.timeline is None else _timeline(picture.timeline),
    }


def longest(parts: Sequence[np.typing.NDArray[np.float64]], step: float) -> float:
    """Return the end of a scale that holds the step, and each rank's parts on top of one another."""
    sums = np.nansum(parts, axis=0) if parts else np.zeros(0)
    return round(max(step if isfinite(step) else 0.0, float(sums.max(initial=0.0))), 3)


def _timeline(timeline: Timeline) -> dict[str, Any]:
    """Return the time line with the colours of its kinds, which stand in the order of their names."""
    begins = [b for row in timeline.rows for b in row.begin]
    ends = [b + n for row in timeline.rows for b, n in zip(row.begin, row.length, strict=True)]
    return {
        "step": timeline.step,
        "ranks": [*timeline.ranks, *timeline.held],
        "shown": len(timeline.ranks),
        "begin": number(min(begins, default=0.0)),
        "end": number(max(ends, default=1.0)),
        "fills": {kind: fill_of(kind) for kind in dict.fromkeys(row.kind for row in timeline.rows)},
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


def _row(suspect: Suspect, step_ms: float) -> dict[str, Any]:
    """Return a row of the table of prices; unknown ends of an interval are dashes."""
    return {
        "rank": suspect.rank,
        "host": plain(suspect.host) if suspect.host else "–",
        "place": ", ".join(f"{axis} {index}" for axis, index in suspect.coords.items()),
        "lost": f"{suspect.lost_ms_per_step:.1f}",
        "low": "–" if suspect.lost_ms_low is None else f"{suspect.lost_ms_low:.1f}",
        "high": "–" if suspect.lost_ms_high is None else f"{suspect.lost_ms_high:.1f}",
        "bar": _price(suspect, step_ms),
        "confidence": f"{suspect.confidence:.2f}",
        "cause": suspect.cause,
    }


def _evidence(named: Sequence[Suspect]) -> list[tuple[str, list[tuple[str, ...]]]]:
    """Return the evidence about ranks, once for all that share it, as the ranks of a stage do: (ranks, rows)."""
    shared: dict[tuple[tuple[str, ...], ...], list[int]] = defaultdict(list)
    for suspect in named:
        rows = tuple(
            (e.what, f"{e.value:.2f}", "–" if e.peers_median is None else f"{e.peers_median:.2f}", e.unit)
            for e in suspect.evidence
        )
        if rows:
            shared[rows].append(suspect.rank)
    return [
        (("ranks " if len(ranks) > 1 else "rank ") + ranges(sorted(ranks), RANK_RUNS_SHOWN), list(rows))
        for rows, ranks in shared.items()
    ]
