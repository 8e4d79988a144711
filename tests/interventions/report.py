"""Tables of promised and measured gains, with what the machine can resolve."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tests.causes.report import table

Row = dict[str, Any]


def resolution_ms(rows: Sequence[Row], mesh: str) -> float:
    """Return the median difference of neighbouring runs without a fault, ms: what a gain is uncertain by."""
    apart = []
    for number in {row["round"] for row in rows}:
        steps = [r["step_ms"] for r in rows if healthy(r, mesh) and r["round"] == number]
        apart += [abs(b - a) for a, b in pairwise(steps)]
    return statistics.median(apart) if apart else 0.0


def healthy(row: Row, mesh: str) -> bool:
    """Return whether a row is a finished run of the mesh without a fault."""
    return row["mesh"] == mesh and row["fault"] is None and "step_ms" in row


def middle(values: Sequence[float | None]) -> float | None:
    """Return the median of the values that are known."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def gains(rows: Sequence[Row], mesh: str, fault: str) -> Row:
    """Return medians over the rounds of a fault: step, gain, promise and its interval, ms; and counts."""
    mine = [row for row in rows if (row["mesh"], row["fault"]) == (mesh, fault)]
    done = [row for row in mine if "gain_ms" in row]
    right = [row for row in done if row["right"]]
    out: Row = {"mesh": mesh, "fault": fault, "runs": len(mine), "done": len(done), "right": len(right)}
    out["measured"] = middle([row["gain_ms"] for row in done])
    out["least"], out["most"] = (f((r["gain_ms"] for r in done), default=None) for f in (min, max))
    for key in ("step_ms", "promised_ms", "low_ms", "high_ms"):
        out[key] = middle([row[key] for row in right])
    return out


def verdict(gain: Row, resolution: float) -> str:
    """Return where the measured gain lies: inside the promised interval, within the resolution of it, or outside."""
    low, high, measured = gain["low_ms"], gain["high_ms"], gain["measured"]
    if low is None or measured is None:
        return "no interval"
    if low <= measured <= high:
        return "inside"
    near = low - resolution <= measured <= high + resolution
    return "within the resolution" if near else "outside"


def cells(gain: Row, resolution: float) -> tuple[object, ...]:
    """Return a row of the table."""

    def ms(value: float | None) -> str:
        return "–" if value is None else f"{value:.0f}"

    spread = f"{ms(gain['measured'])} ({ms(gain['least'])} to {ms(gain['most'])})"
    between = "–" if gain["low_ms"] is None else f"{ms(gain['low_ms'])} to {ms(gain['high_ms'])}"
    known = gain["measured"] and gain["promised_ms"]
    ratio = f"{gain['promised_ms'] / gain['measured']:.2f}" if known else "–"
    answers = f"{gain['right']} of {gain['done']}"
    where = verdict(gain, resolution)
    return (
        gain["mesh"], f"`{gain['fault']}`", ms(gain["step_ms"]), spread, ms(gain["promised_ms"]), between, ratio,
        answers, where,
    )  # fmt: skip


def report(rows: Sequence[Row]) -> str:
    """Return the table of gains, that of the meshes' resolution, and a line that counts."""
    meshes = list(dict.fromkeys(row["mesh"] for row in rows))
    unsure = {mesh: resolution_ms(rows, mesh) for mesh in meshes}
    keys = dict.fromkeys((row["mesh"], row["fault"]) for row in rows if row["fault"])
    found = [gains(rows, mesh, fault) for mesh, fault in keys]
    head = (
        "mesh", "removed", "step ms", "measured gain ms", "promised", "interval", "ratio", "right", "measured lies",
    )  # fmt: skip
    body = [cells(gain, unsure[gain["mesh"]]) for gain in found]
    steps = {m: [row["step_ms"] for row in rows if healthy(row, m)] for m in meshes}
    noise = [
        (
            mesh,
            len(own),
            f"{statistics.median(own):.0f}",
            f"{min(own):.0f} to {max(own):.0f}",
            f"{unsure[mesh]:.0f}",
        )
        for mesh, own in steps.items()
        if own
    ]
    return "\n\n".join(
        (
            table(head, body),
            table(("mesh", "healthy runs", "step ms", "least to most", "resolution ms"), noise),
            counted(found, unsure),
        )
    )


def counted(found: Sequence[Row], unsure: dict[str, float]) -> str:
    """Return how many answers are right, and how many measured gains lie in their interval."""
    worth = [verdict(gain, unsure[gain["mesh"]]) for gain in found if gain["promised_ms"] is not None]
    held = [one for one in worth if one != "no interval"]
    lines = [f"answers: {sum(g['right'] for g in found)} of {sum(g['done'] for g in found)} right"]
    inside, near = (held.count(one) for one in ("inside", "within the resolution"))
    lines.append(
        f"measured gain in the promised interval: {inside} of {len(held)}, {near} more within the resolution"
    )
    ratios = [g["promised_ms"] / g["measured"] for g in found if g["promised_ms"] and g["measured"]]
    if ratios:
        ends = statistics.quantiles(ratios, n=10) if len(ratios) > 1 else [ratios[0]] * 9
        lines.append(
            f"promised over measured: median {statistics.median(ratios):.2f}, nine in ten from {ends[0]:.2f} to "
            f"{ends[-1]:.2f}"
        )
    return "\n".join(lines)
