"""Tables of promised and measured gains, with what the machine can resolve."""

import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tests.causes.report import table

Row = dict[str, Any]


def resolution(rows: Sequence[Row]) -> float:
    """Return the median difference of neighbouring blocks without a fault, as a share of their step."""
    apart = [
        abs(after / before - 1)
        for row in rows
        if "blocks_ms" in row
        for before, after in pairwise(row["blocks_ms"][::2])
    ]
    return statistics.median(apart) if apart else 0.0


def lies(row: Row, share: float) -> str:
    """Return where the measured gain lies: in the promised interval, as near as can be resolved, or outside."""
    low, high, measured = row["low_ms"], row["high_ms"], statistics.fmean(row["gains_ms"])
    if low is None:
        return "no interval"
    if low <= measured <= high:
        return "inside"
    about = share * statistics.fmean(row["blocks_ms"][::2])
    return "within the resolution" if low - about <= measured <= high + about else "outside"


def cells(row: Row, share: float) -> tuple[object, ...]:
    """Return a row of the table."""
    name = (row["mesh"], f"`{row['fault']}`")
    if "error" in row:
        return (*name, f"failed: {row['error']}", *[""] * 7)
    usual, measured = statistics.fmean(row["blocks_ms"][::2]), statistics.fmean(row["gains_ms"])
    each = ", ".join(f"{gain:.0f}" for gain in row["gains_ms"])
    between = "–" if row["low_ms"] is None else f"{row['low_ms']:.0f} to {row['high_ms']:.0f}"
    ranks = ", ".join(map(str, row["named"])) or "none"
    answer = f"{row['verdict']} {row['cause'] or ''} {ranks}"
    ratio = f"{row['promised_ms'] / measured:.2f}" if measured > 0 else "–"
    where = lies(row, share) if row["right"] else "–"
    promised = f"{row['promised_ms']:.0f}"
    right = "right" if row["right"] else "not right"
    return (*name, f"{usual:.0f}", f"{measured:.0f} ({each})", promised, between, ratio, where, answer, right)


def report(rows: Sequence[Row]) -> str:
    """Return the table of gains and lines that count."""
    share = resolution(rows)
    head = (
        "mesh", "removed", "healthy ms", "measured gain ms", "promised", "interval", "ratio", "measured lies", "answer",
        "",
    )  # fmt: skip
    return "\n\n".join((table(head, [cells(row, share) for row in rows]), counted(rows, share)))


def counted(rows: Sequence[Row], share: float) -> str:
    """Return how many answers are right, how many measured gains lie in their interval, and the resolution."""
    right = [row for row in rows if row.get("right")]
    held = [where for row in right if (where := lies(row, share)) != "no interval"]
    ratios = [row["promised_ms"] / statistics.fmean(row["gains_ms"]) for row in right]
    inside, near = (held.count(one) for one in ("inside", "within the resolution"))
    lines = [
        f"right: {len(right)} of {len(rows)}",
        f"measured gain in the promised interval: {inside} of {len(held)}, {near} more within the resolution",
        f"resolution: {share:.1%} of the step",
    ]
    if ratios:
        least, most = min(ratios), max(ratios)
        lines.append(
            f"promised over measured: {least:.2f} to {most:.2f}, median {statistics.median(ratios):.2f}"
        )
    return "\n".join(lines)
