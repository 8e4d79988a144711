"""The ladder's answer as text and as JSON (`numerics.ladder/1`)."""

import math
from typing import Final

from numerics.precision.ladder import LADDER_SCHEMA, LadderFinding, Rung, Shape, Verdict
from numerics.report.documents import LadderDocument, RungDocument
from numerics.thresholds.report import COLUMNS, RUNGS_SHOWN
from tracekit.text import plain

VERDICTS: Final[dict[Verdict, str]] = {
    "identical": "IDENTICAL",
    "drift": "DRIFT, not a bug",
    "bug": "BUG",
    "undecided": "UNDECIDED",
}
_SHAPES: dict[Shape, str] = {
    "equal": "equal",
    "slope": "fall",
    "plateau": "stay",
    "vanishing": "are zero but for rounding",
    "unknown": "not comparable",
}


def ladder_text(finding: LadderFinding, *, verbose: bool = False) -> str:
    """Return the finding as lines for a terminal, with a newline at the end."""
    lines = [f"{VERDICTS[finding.verdict]}: {finding.reason}"]
    counts = ", ".join(
        f"{finding.count(shape)} {word}" for shape, word in _SHAPES.items() if finding.count(shape)
    )
    lines.append(f"{len(finding.rungs)} tensors: {counts}")
    shown = finding.rungs if verbose else telling(finding)
    if shown:
        head = "".join(f"{policy:>9}" for policy in finding.policies)
        room = COLUMNS - len(head) - 24
        lines.append(f"{'tensor':<{room}}{'step':>6}{head}{'slope':>7}  shape")
        lines += [_row(rung, room) for rung in shown]
    lines += [f"note: {note}" for note in finding.notes]
    return "".join(plain(line, "?") + "\n" for line in lines)


def telling(finding: LadderFinding) -> list[Rung]:
    """Return the first plateaus; without any, the tensors that are farthest apart on the finest rung."""
    plateaus = [rung for rung in finding.rungs if rung.shape == "plateau"]
    if plateaus:
        return plateaus[:RUNGS_SHOWN]
    slopes = [rung for rung in finding.rungs if rung.shape == "slope"]
    return sorted(slopes, key=lambda rung: (-rung.distances[-1], rung.tensor))[:RUNGS_SHOWN]


def _row(rung: Rung, room: int) -> str:
    distances = "".join(f"{distance:>9.1e}" for distance in rung.distances)
    slope = round(rung.slope, 2) + 0.0  # no -0.00
    return f"{shortened(rung.tensor, room):<{room}}{rung.step:>6}{distances}{slope:>7.2f}  {rung.shape}"


def shortened(name: str, room: int) -> str:
    """Return a name that fits: for a longer name its end, which separates tensors of one module."""
    return name if len(name) <= room else f"…{name[len(name) - room + 1 :]}"


def ladder_document(finding: LadderFinding) -> LadderDocument:
    """Return the finding as a JSON-ready dict."""
    return {
        "schema": LADDER_SCHEMA,
        "verdict": finding.verdict,
        "proof": "none" if finding.verdict == "undecided" else "ladder",
        "reason": finding.reason,
        "policies": list(finding.policies),
        "first": None if finding.first is None else _rung(finding.first),
        "tensors": {shape: finding.count(shape) for shape in _SHAPES},
        "rungs": [_rung(rung) for rung in finding.rungs],
        "notes": list(finding.notes),
    }


def _rung(rung: Rung) -> RungDocument:
    return {
        "step": rung.step,
        "phase": rung.phase,
        "kind": rung.kind,
        "tensor": rung.tensor,
        "relative": [number(distance) for distance in rung.distances],
        "slope": number(rung.slope),
        "shape": rung.shape,
    }


def number(value: float) -> float | None:
    """Return a number for JSON: None for infinity and NaN."""
    return float(f"{value:.9g}") if math.isfinite(value) else None
