"""Tables of the cells: truth by answered cause, pairs by what is named of them, and promised gains beside measured."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from tests.causes.cell import COSTS, KINDS

Row = dict[str, Any]
CAUSES = tuple(dict.fromkeys(kind.cause for kind in KINDS.values() if kind.cause))
WORTHS = ("right", "open", "missed", "wrong rank", "wrong cause", "false alarm", "not planted")


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def answered(row: Row) -> str:
    """Return the column of a row: the cause, or that none was named."""
    if row["worth"] in {"missed", "not planted"}:
        return str(row["worth"])
    return "open" if row["worth"] == "open" else str(row["cause"] or row["verdict"])


def confusion(rows: Sequence[Row]) -> str:
    """Return the matrix of single faults: planted cause by answered cause, and wrong ranks, in cells."""
    single = [row for row in rows if len(row["kinds"]) == 1]
    columns = (*CAUSES, *sorted({answered(row) for row in single} - set(CAUSES)))
    body = []
    for name, kind in KINDS.items():
        mine = [row for row in single if row["kinds"][0] == name]
        counts = Counter(map(answered, mine))
        wrong = sum(row["worth"] == "wrong rank" for row in mine)
        body.append((f"`{name}`", kind.cause, *(counts[c] or "·" for c in columns), wrong or "·"))
    return table(("planted", "cause", *columns, "wrong rank"), body)


def by_severity(rows: Sequence[Row]) -> str:
    """Return the worth of answers by severity, of single faults and of two at once."""
    keys = sorted({(len(row["kinds"]), row["severity"]) for row in rows})
    body = []
    for faults, severity in keys:
        mine = [r["worth"] for r in rows if (len(r["kinds"]), r["severity"]) == (faults, severity)]
        body.append((faults, f"{severity:.0%}", len(mine), *(mine.count(worth) or "·" for worth in WORTHS)))
    return table(("faults", "slowdown of each", "cells", *WORTHS), body)


def named(row: Row) -> list[bool]:
    """Return for each fault whether a suspect or a further cure has its rank and cause, or the imbalance is its own."""
    causes = {(suspect[0], suspect[1]) for suspect in row["suspects"]}
    causes |= {(rank, cause) for cause, ranks in row.get("cures", ()) for rank in ranks}
    out = []
    for name, rank in zip(row["kinds"], row["ranks"], strict=True):
        kind = KINDS[name]
        out.append(
            (rank, kind.cause) in causes or (kind.verdict == "imbalance" and row["cause"] == kind.cause)
        )
    return out


def pairs(rows: Sequence[Row]) -> str:
    """Return a row a pair: worth of the first answer, and of faults that cost more than COSTS how many are named."""
    two = [row for row in rows if len(row["kinds"]) > 1]
    body = []
    for kinds in dict.fromkeys(tuple(row["kinds"]) for row in two):
        mine = [row for row in two if tuple(row["kinds"]) == kinds]
        due = [
            found
            for row in mine
            if "gains_ms" in row
            for found, gain in zip(named(row), row["gains_ms"], strict=True)
            if gain >= COSTS * row["step_ms"]
        ]
        counts = Counter(row["worth"] for row in mine)
        both = f"{sum(due)} of {len(due)}"
        body.append((" + ".join(f"`{k}`" for k in kinds), *(counts[w] or "·" for w in WORTHS), both))
    return table(("pair", *WORTHS, "costly faults named"), body)


def gain(row: Row) -> tuple[float, float, float, float | None, float | None]:
    """Return (step, measured gain, promised gain, its low and high end), ms; no interval of imbalances."""
    kind = KINDS[row["kinds"][0]]
    own = next((s for s in row["suspects"] if kind.strikes(row["ranks"][0], s[0])), None)
    low, high = (own[3], own[4]) if own and row["verdict"] != "imbalance" else (None, None)
    return row["step_ms"], row["gains_ms"][0], row["promised_ms"], low, high


def inside(row: Row) -> bool | None:
    """Return whether the measured gain lies in the promised interval; None without one."""
    _, measured, _, low, high = gain(row)
    return None if low is None or high is None else low <= measured <= high


def interventions(rows: Sequence[Row]) -> str:
    """Return a row a kind: gains of single faults with a right answer, promised and measured, in shares of the step."""
    right = [row for row in rows if len(row["kinds"]) == 1 and row["worth"] == "right"]
    body = []
    for name, kind in KINDS.items():
        mine = [row for row in right if row["kinds"][0] == name]
        if not mine or kind.verdict == "healthy":
            continue
        ratios = sorted(promised / measured for _, measured, promised, _, _ in map(gain, mine))
        held = [found for found in map(inside, mine) if found is not None]
        middle = ratios[len(ratios) // 2]
        within = f"{sum(held)} of {len(held)}" if held else "no interval"
        body.append(
            (f"`{name}`", len(mine), f"{ratios[0]:.2f}", f"{middle:.2f}", f"{ratios[-1]:.2f}", within)
        )
    return table(("removed", "jobs", "least", "median", "most", "measured gain in the interval"), body)


def summary(rows: Sequence[Row]) -> str:
    """Return the shares of right answers, and of measured gains inside the interval, in two lines."""
    lines = []
    for name, mine in (
        ("no fault", [row for row in rows if not row["kinds"]]),
        ("one fault", [row for row in rows if len(row["kinds"]) == 1]),
        ("two faults", [row for row in rows if len(row["kinds"]) > 1]),
    ):
        judged = [row["worth"] for row in mine if row["worth"] != "not planted"]
        if judged:
            said = ", ".join(f"{judged.count(worth)} {worth}" for worth in WORTHS if worth in judged)
            lines.append(
                f"{name}: {judged.count('right') / len(judged):.1%} right of {len(judged)} cells: {said}"
            )
    held = [inside(row) for row in rows if len(row["kinds"]) == 1 and row["worth"] == "right"]
    known = [found for found in held if found is not None]
    if known:
        lines.append(f"measured gain in the promised interval: {sum(known)} of {len(known)}")
    return "\n".join(lines)
