"""A schedule's time line in the terminal: one row a rank, memory and bubble beside it."""

from collections.abc import Sequence
from fractions import Fraction
from math import gcd, lcm

from rich.console import Console
from rich.text import Text

from reftrain.schedule.actions import Kind
from reftrain.schedule.evaluation import Evaluation
from reftrain.schedule.timing import Span
from reftrain.thresholds import MOST_BANDS

STYLES = {
    Kind.FORWARD: ("white on blue", "black on bright_blue"),
    Kind.BACKWARD: ("white on green", "black on bright_green"),
    Kind.BACKWARD_INPUT: ("white on green", "black on bright_green"),
    Kind.BACKWARD_WEIGHT: ("black on yellow", "black on bright_yellow"),
    Kind.RECOMPUTE: ("white on magenta", "black on bright_magenta"),
}
IDLE = "."
PLAIN_WIDTH = 110


def show(evaluation: Evaluation, console: Console) -> None:
    """Print figures, time line and memory; plain characters off a terminal."""
    schedule, steady = evaluation.schedule, evaluation.steady
    state = "" if schedule.synchronous else ", steady state"
    console.print(
        f"{schedule.name}: {schedule.ranks} ranks, {schedule.stages} stages, {schedule.micro_batches} micro-batches, "
        f"{'synchronous' if schedule.synchronous else 'asynchronous'}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    console.print(
        f"makespan {float(evaluation.timing.makespan):g}, bubble {float(steady.bubble_ratio):.2%} of the time, "
        f"{float(steady.bubble_over_compute):.2%} of the computation{state}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    width = console.width if console.is_terminal else PLAIN_WIDTH
    for line in time_line(evaluation, width):
        console.print(line, soft_wrap=True)
    console.print(
        "F forward, B backward, I and W its parts for input and weights, C recomputation, "
        "lower case: a replica that goes up",
        highlight=False,
        soft_wrap=True,
    )
    console.print("rank  activations  inputs  weights", highlight=False)
    for rank, peaks in enumerate(evaluation.peaks):
        console.print(
            f"{rank:4}  {peaks.activations:11}  {peaks.inputs:6}  {peaks.weights:7}", highlight=False
        )


def time_line(evaluation: Evaluation, width: int) -> list[Text]:
    """Rows of all ranks, folded into bands where the line is longer than `width`; drawn to scale."""
    spans = evaluation.timing.spans
    unit = _unit(spans)
    labels = max((len(_label(s)) for row in spans for s in row), default=1)
    room = max(20, width - 6)
    columns = labels * evaluation.timing.makespan / unit if unit else Fraction(0)
    if columns > room * MOST_BANDS:
        rows = [_squeezed(row, room, evaluation.timing.makespan) for row in spans]
        columns = Fraction(room)
    else:
        rows = [_to_scale(row, unit, labels, int(columns)) for row in spans]
    lines: list[Text] = []
    for begin in range(0, int(columns), room):
        lines += [Text(f"{rank:4}  ") + row[begin : begin + room] for rank, row in enumerate(rows)]
        lines.append(Text(""))
    return lines


def _label(span: Span) -> str:
    letter = str(span.action.kind)
    return (letter.lower() if span.action.replica % 2 else letter) + str(span.action.micro_batch)


def _style(span: Span) -> str:
    return STYLES.get(span.action.kind, ("", ""))[span.action.replica % 2]


def _unit(spans: Sequence[Sequence[Span]]) -> Fraction:
    """Greatest common measure of all begins and ends."""
    times = {t for row in spans for s in row for t in (s.begin, s.end)} - {Fraction(0)}
    if not times:
        return Fraction(0)
    denominator = lcm(*(t.denominator for t in times))
    return Fraction(gcd(*(int(t * denominator) for t in times)), denominator)


def _to_scale(row: Sequence[Span], unit: Fraction, labels: int, columns: int) -> Text:
    out = Text()
    for span in row:
        begin, end = (int(labels * t / unit) for t in (span.begin, span.end))
        out.append(IDLE * (begin - len(out)), style="dim")
        out.append(_label(span).ljust(end - begin, "-")[: end - begin], style=_style(span))
    out.append(IDLE * (columns - len(out)), style="dim")
    return out


def _squeezed(row: Sequence[Span], columns: int, makespan: Fraction) -> Text:
    """One character a column: what runs in the middle of its stretch of time."""
    out, at = Text(), 0
    for column in range(columns):
        time = makespan * (2 * column + 1) / (2 * columns)
        while at < len(row) and row[at].end <= time:
            at += 1
        span = row[at] if at < len(row) and row[at].begin <= time else None
        out.append(_label(span)[0] if span else IDLE, style=_style(span) if span else "dim")
    return out
