"""Figures beside ours as text and as JSON; nothing is computed here."""

import textwrap
from collections.abc import Sequence

from reftrain.documents import FigureDocument, ReproduceDocument
from reftrain.papers.figure import Figure, Line, Missing

WIDTH = 62
"""Columns of what a line is about."""


def text(figures: Sequence[tuple[Figure, Sequence[Line]]], missing: Sequence[Missing]) -> str:
    """Return the figures as tables, reasons of differences below their lines, then what is not reproduced."""
    out = []
    for figure, lines in figures:
        out.append(f"{figure.name}: {figure.title} [{figure.source}]")
        out.append(f"  {'':{WIDTH}} {'published':>10} {'ours':>9} {'deviation':>10}")
        for line in lines:
            out += _rows(line)
        out.append("")
    if missing:
        out.append("not reproduced:")
        for one in missing:
            out += [f"  {one.name}: {one.title} [{one.source}]", *_wrapped(one.why)]
        out.append("")
    return "\n".join(out)


def _rows(line: Line) -> list[str]:
    what = f"{line.what}, {line.unit}" if line.unit else line.what
    published = "–" if line.published is None else f"{line.bound} {line.published:g}".strip()
    deviation = "–" if line.deviation is None else f"{100 * line.deviation:+.1f} %"
    fitted = "  fitted" if line.how == "fitted" else ""
    return [
        f"  {what:{WIDTH}} {published:>10} {line.ours:>9.4g} {deviation:>10}{fitted}",
        *_wrapped(line.why),
    ]


def _wrapped(why: str) -> list[str]:
    return textwrap.wrap(why, 92, initial_indent="      ", subsequent_indent="      ")


def document(
    figures: Sequence[tuple[Figure, Sequence[Line]]], missing: Sequence[Missing]
) -> ReproduceDocument:
    """Return the contents of `reftrain.reproduce/1`."""
    return {
        "schema": "reftrain.reproduce/1",
        "figures": [_figure(figure, lines) for figure, lines in figures],
        "missing": [
            {"name": one.name, "source": one.source, "title": one.title, "why": one.why} for one in missing
        ],
    }


def _figure(figure: Figure, lines: Sequence[Line]) -> FigureDocument:
    return {
        "name": figure.name,
        "source": figure.source,
        "title": figure.title,
        "machine": figure.machine,
        "lines": [
            {
                "what": line.what,
                "unit": line.unit,
                "published": line.published,
                "bound": line.bound,
                "ours": line.ours,
                "deviation": line.deviation,
                "how": line.how,
                "why": line.why,
            }
            for line in lines
        ],
    }
