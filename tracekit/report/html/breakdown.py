"""The page of `tracekit breakdown`: the parts of the step by rank and step, and what each axis moved."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from tracekit.findings import BreakdownFinding, RankBreakdown, Share, TimeParts
from tracekit.page.palette import Fill, fill_of
from tracekit.page.scale import whole
from tracekit.page.shell import About
from tracekit.report.breakdown_json import breakdown_document
from tracekit.report.breakdown_text import foundations, sent_text, traffic_cells
from tracekit.report.html.answer import answer_page
from tracekit.report.html.cells import blocks_of, field_of, rounded, shown_of, steps_text
from tracekit.report.html.slowrank import longest
from tracekit.report.slowrank_json import dumps
from tracekit.text import plain
from tracekit.thresholds.report import PAGE_ROWS, PARTS_IN_HEADLINE
from tracekit.units import F64, ms


def breakdown_html(finding: BreakdownFinding, about: About | None = None) -> str:
    """Return the page as text; the same arguments give the same bytes."""
    return answer_page(
        "breakdown.html.j2",
        word="BREAKDOWN",
        headline=_headline(finding),
        tone="calm",
        next_steps=[
            "tracekit slowrank says which rank, stage or link costs the waiting; tracekit whatif what each would save"
        ],
        lines=foundations(finding, verbose=True),
        document=("breakdown", dumps(breakdown_document(finding))),
        about=about,
        data=_data(finding),
        scripts=("ranks.js",),
        shares=[_share(s) for s in finding.shares],
        traffic=[(t.axis, t.op, t.members, *traffic_cells(t)) for t in finding.traffic[:PAGE_ROWS]],
        volumes=[
            (f"{v.axis} {v.what}", sent_text(v), f"{v.formula}: {v.scheme}")
            for v in finding.volumes[:PAGE_ROWS]
        ],
    )


def _headline(finding: BreakdownFinding) -> str:
    """Return the step and the parts that take most of it."""
    steps = len(finding.cells)
    mean = ms(finding.total.step_ns / max(steps, 1))
    parts = sorted((s for s in finding.shares if s.mean_ns > 0), key=lambda s: -s.mean_ns)
    most = ", ".join(f"{s.share:.1%} {plain(s.part)}" for s in parts[:PARTS_IN_HEADLINE])
    return f"{mean:.1f} ms a step: {most}" if most else f"{mean:.1f} ms a step"


def _share(share: Share) -> tuple[Fill, tuple[str, ...]]:
    """Return the colours of a part and its row of the table."""
    spread = (f"{x:.1%}" for x in (share.share, share.least, share.median, share.most))
    return fill_of(share.part), (share.part, f"{ms(share.mean_ns):.3f}", *spread)


def _data(finding: BreakdownFinding) -> dict[str, Any]:
    """Return what the script draws; times in ms, rounded to 1 µs."""
    ranks = sorted(finding.by_rank, key=lambda r: r.rank)
    steps = sorted({cell.step for cell in finding.cells})
    job, row = _job(finding, ranks)
    blocks = blocks_of(steps, max(len(job), 1))
    named = [_named(r.parts, max(r.steps, 1)) for r in ranks]
    kinds = list(dict.fromkeys(kind for parts in named for kind, spent in parts.items() if spent))
    spent = {kind: _spread([p.get(kind, 0.0) for p in named], row, len(job)) for kind in kinds}
    step = ms(finding.total.step_ns / max(len(finding.cells), 1))
    cells = _cells(finding, job, steps)
    return {
        **_field(job, ranks),
        "named": [],
        "steps": [steps_text(steps, block) for block in blocks],
        "what": [
            shown_of("waited for communication", "victim", whole(step), cells[0], blocks),
            shown_of("computed", "compute", whole(step), cells[1], blocks),
        ],
        "parts": [
            {"name": plain(kind), "fill": fill_of(kind), "values": rounded(spent[kind])} for kind in kinds
        ],
        "whole": longest(list(spent.values()), step),
        "levels": [],
        "timeline": None,
    }


def _job(finding: BreakdownFinding, ranks: Sequence[RankBreakdown]) -> tuple[list[int], list[int]]:
    """Return every rank of the job, those without a trace too, and which of them each recorded one is."""
    job = sorted({r.rank for r in ranks} | {*finding.ranks.missing})
    number = {rank: i for i, rank in enumerate(job)}
    return job, [number[r.rank] for r in ranks]


def _spread(values: Sequence[float], row: Sequence[int], count: int) -> F64:
    """Return values of recorded ranks among all; NaN for the others."""
    spread = np.full(count, np.nan)
    spread[list(row)] = values
    return spread


def _field(job: Sequence[int], ranks: Iterable[RankBreakdown]) -> dict[str, Any]:
    """Return the ranks with hosts and places; what is not recorded has neither."""
    known = {r.rank: r for r in ranks}
    axes = dict.fromkeys(axis for r in known.values() for axis in r.coords)
    return field_of(
        job,
        [known[r].host if r in known else None for r in job],
        {axis: [known[r].coords.get(axis, -1) if r in known else -1 for r in job] for axis in axes},
    )


def _named(parts: TimeParts, steps: int) -> dict[str, float]:
    """Return the name of each part → ms a step; their sum is the step. Parts without time in any rank are not drawn."""
    spent = {"compute": parts.compute_ns, "host": parts.host_ns, "bubble": parts.bubble_ns}
    for e in parts.exposed:
        spent[f"waits on {e.axis}"] = e.wait_ns
        spent[f"transfers on {e.axis}"] = e.transfer_ns
        spent["waits or transfers"] = spent.get("waits or transfers", 0) + e.open_ns
    spent |= {"idle": parts.idle_ns, "unknown": parts.unknown_ns}
    return {kind: ms(ns / steps) for kind, ns in spent.items()}


def _cells(finding: BreakdownFinding, job: Sequence[int], steps: Sequence[int]) -> tuple[F64, F64]:
    """Return the time that each rank stood still and computed, one column a step, ms; NaN where nothing is recorded."""
    row = {rank: i for i, rank in enumerate(job)}
    column = {step: i for i, step in enumerate(steps)}
    stood, computed = (np.full((len(row), len(column)), np.nan) for _ in range(2))
    for cell in finding.cells:
        at, p = (row[cell.rank], column[cell.step]), cell.parts
        stood[at] = ms(p.waiting_ns + p.transfer_ns + p.open_ns + p.bubble_ns)
        computed[at] = ms(p.compute_ns)
    return stood, computed
