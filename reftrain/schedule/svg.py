"""A table's time line as SVG: one row a rank, width proportional to time, memory beside it.

All text but our own numbers is escaped: a table's name may come from a file.
"""

from collections.abc import Iterator
from fractions import Fraction
from html import escape

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import Kind
from reftrain.schedule.evaluation import Evaluation
from reftrain.schedule.timing import Span
from reftrain.thresholds import MOST_DRAWN_ACTIONS

ROW, LEFT, TOP, RIGHT = 26, 62, 62, 230
LABEL = 7
"""Pixels of a character of a label."""
FILLS = {
    Kind.FORWARD: ("#3b7dd8", "#8ab4f0"),
    Kind.BACKWARD: ("#2f9e5b", "#8fd3a8"),
    Kind.BACKWARD_INPUT: ("#2f9e5b", "#8fd3a8"),
    Kind.BACKWARD_WEIGHT: ("#b58a00", "#e3c766"),
    Kind.RECOMPUTE: ("#8a63b8", "#c3abdf"),
}
"""Dark for replicas that go down, light for replicas that go up."""
NAMES = {
    Kind.FORWARD: "forward",
    Kind.BACKWARD: "backward",
    Kind.BACKWARD_INPUT: "backward (input)",
    Kind.BACKWARD_WEIGHT: "backward (weights)",
    Kind.RECOMPUTE: "recomputation",
}


def to_svg(evaluation: Evaluation) -> str:
    """Return the time line as SVG; raises `ScheduleError` above `MOST_DRAWN_ACTIONS` actions."""
    timing, schedule = evaluation.timing, evaluation.schedule
    count = sum(map(len, timing.spans))
    if count > MOST_DRAWN_ACTIONS:
        problem = f"{count} actions are too many for a picture"
        raise ScheduleError("--svg", problem, f"stay below {MOST_DRAWN_ACTIONS}, or take the CSV")
    width = _width(evaluation)
    scale = Fraction(width) / (timing.makespan or 1)
    height = TOP + ROW * schedule.ranks + 58
    total = LEFT + width + RIGHT
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{height}" '
            f'viewBox="0 0 {total} {height}" font-family="sans-serif" font-size="11">'
        ),
        f'<rect width="{total}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(_title(evaluation))}</text>',
        f'<text x="{LEFT}" y="38" fill="#444">{escape(_figures(evaluation))}</text>',
        f'<text x="{LEFT + width + 14}" y="{TOP - 8}" fill="#444">activations (M_a), weights</text>',
    ]
    most = max(p.activations for p in evaluation.peaks) or 1
    for rank, spans in enumerate(timing.spans):
        y = TOP + ROW * rank
        parts.append(f'<text x="8" y="{y + 17}">rank {rank}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y + 2}" width="{width}" height="{ROW - 4}" fill="#f1f1f1"/>')
        parts += [line for span in spans for line in _span(span, y, scale)]
        parts += _memory(evaluation, rank, LEFT + width + 14, y, most)
    parts += _legend(evaluation, TOP + ROW * schedule.ranks + 30)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _width(evaluation: Evaluation) -> int:
    """Return the pixels of the time axis: 18 for the shortest action, within 400 and 4000 in all."""
    lengths = [s.end - s.begin for spans in evaluation.timing.spans for s in spans if s.end > s.begin]
    shortest = min(lengths, default=Fraction(1))
    wanted = float(18 * evaluation.timing.makespan / shortest)
    return int(min(4000, max(400, wanted)))


def _title(evaluation: Evaluation) -> str:
    schedule = evaluation.schedule
    return f"{schedule.name}: {schedule.ranks} ranks, {schedule.micro_batches} micro-batches"


def _figures(evaluation: Evaluation) -> str:
    state = "" if evaluation.schedule.synchronous else " (steady state)"
    makespan, steady = evaluation.timing.makespan, evaluation.steady
    return (
        f"makespan {float(makespan):g}, bubble {float(steady.bubble_ratio):.2%} of the time, "
        f"{float(steady.bubble_over_compute):.2%} of the computation{state}"
    )


def _span(span: Span, y: int, scale: Fraction) -> Iterator[str]:
    x, width = float(LEFT + span.begin * scale), float((span.end - span.begin) * scale)
    fill = FILLS.get(span.action.kind, ("#777", "#bbb"))[span.action.replica % 2]
    ink = "white" if span.action.replica % 2 == 0 else "black"
    yield (
        f'<rect x="{x:.2f}" y="{y + 2}" width="{width:.2f}" height="{ROW - 4}" fill="{fill}" stroke="white">'
        f"<title>{escape(str(span.action))}: {float(span.begin):g} to {float(span.end):g}</title></rect>"
    )
    label = str(span.action.micro_batch)
    if width >= LABEL * len(label) + 2:
        yield (f'<text x="{x + width / 2:.2f}" y="{y + 17}" text-anchor="middle" fill="{ink}">{label}</text>')


def _memory(evaluation: Evaluation, rank: int, x: int, y: int, most: int) -> Iterator[str]:
    peaks = evaluation.peaks[rank]
    yield f'<rect x="{x}" y="{y + 6}" width="{110 * peaks.activations / most:.1f}" height="{ROW - 12}" fill="#d98c5f"/>'
    yield f'<text x="{x + 116}" y="{y + 17}">{peaks.activations}, {peaks.weights} weights</text>'


def _legend(evaluation: Evaluation, y: int) -> Iterator[str]:
    x = LEFT
    seen = {(s.action.kind, s.action.replica % 2) for spans in evaluation.timing.spans for s in spans}
    for kind, name in NAMES.items():
        for way in (0, 1):
            if (kind, way) in seen:
                text = name + (" (up)" if way else "")
                yield f'<rect x="{x}" y="{y}" width="12" height="12" fill="{FILLS[kind][way]}"/>'
                yield f'<text x="{x + 17}" y="{y + 10}">{text}</text>'
                x += 36 + LABEL * len(text)
