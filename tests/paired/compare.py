"""Two files of answers beside each other: which jobs got better, which worse, and what that proves."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median
from typing import Any, Final

from tests.paired.judge import WEIGHT, WORDS

NEARER: Final = 0.5  # points by which a price may move without coming nearer to the truth


@dataclass(frozen=True)
class Change:
    """One job whose answer differs: its name, both words, both prices' errors in points, and whether it got worse."""

    key: str
    kind: str
    old: dict[str, Any]
    new: dict[str, Any]

    @property
    def by(self) -> int:
        """How many places the word rose; negative where it fell."""
        return WEIGHT[self.new["word"]] - WEIGHT[self.old["word"]]

    @property
    def price_worse(self) -> bool:
        """Whether both price the culprits, and the new price is further from the truth by more than NEARER points."""
        old, new = self.old.get("points"), self.new.get("points")
        return old is not None and new is not None and abs(new) > abs(old) and abs(new - old) > NEARER

    @property
    def worse(self) -> bool:
        """Whether this change needs a reason."""
        return self.by < 0 or (self.by == 0 and self.price_worse)

    def line(self) -> str:
        """The change in one line."""
        old, new = (_short(row) for row in (self.old, self.new))
        mark = "WORSE " if self.worse else "better" if self.by > 0 else "other "
        return f"{mark} {self.key} ({self.kind}): {old}  ->  {new}"


def _short(row: dict[str, Any]) -> str:
    answer = row["answer"]
    if "error" in answer:
        return f"{row['word']} [{answer['error'][:60]}]"
    points = f", {row['points']:+.1f} points" if row.get("points") is not None else ""
    ranks = (answer["suspects"] or answer["candidates"])[:4]
    return f"{row['word']} [{answer['verdict']}/{answer['cause']} {ranks} {answer['slowdown']:.3f}{points}]"


def load(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a file of answers by name of the job."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return {row["key"]: row for row in rows}


def changes(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> list[Change]:
    """The jobs in both files whose answers differ in anything but the time they took."""
    both = sorted(old.keys() & new.keys())
    return [Change(key, new[key]["kind"], old[key], new[key]) for key in both if _differ(old[key], new[key])]


def _differ(old: dict[str, Any], new: dict[str, Any]) -> bool:
    def fixed(row: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in row["answer"].items() if name != "seconds"}

    return fixed(old) != fixed(new)


def sign_test(better: int, worse: int) -> float:
    """Two-sided exact probability that chance alone splits `better + worse` changes at least so unevenly."""
    n, k = better + worse, min(better, worse)
    return min(1.0, 2.0 * sum(comb(n, i) for i in range(k + 1)) / 2.0**n) if n else 1.0


def summary(rows: Iterable[dict[str, Any]]) -> str:
    """Words counted, and the errors of prices, in one line."""
    rows = list(rows)
    count = Counter(row["word"] for row in rows)
    errors = sorted(abs(row["points"]) for row in rows if row.get("points") is not None)
    held = [row["held"] for row in rows if row.get("held") is not None]
    words = ", ".join(f"{word} {count[word]}" for word in reversed(WORDS) if count[word])
    price = (
        f"; price p50 {median(errors):.1f}, p90 {errors[len(errors) * 9 // 10]:.1f} points" if errors else ""
    )
    over_all = sum(row.get("held_all", row["held"]) for row in rows if row.get("held") is not None)
    inside = (
        f"; truth inside its interval {sum(held)} of {len(held)}, {over_all} over all steps" if held else ""
    )
    return f"{len(rows)} jobs: {words}{price}{inside}"


def report(old: dict[str, dict[str, Any]], new: dict[str, dict[str, Any]]) -> tuple[str, int]:
    """The comparison as text, and how many changes need a reason."""
    both = old.keys() & new.keys()
    changed = changes(old, new)
    better, worse = sum(c.by > 0 for c in changed), sum(c.by < 0 for c in changed)
    unjustified = sum(c.worse for c in changed)
    lines = [c.line() for c in sorted(changed, key=lambda c: (not c.worse, -c.by, c.key))]
    lines += [
        f"old  {summary(old[key] for key in both)}",
        f"new  {summary(new[key] for key in both)}",
    ]
    proof = f"sign test p = {sign_test(better, worse):.3f}"
    lines.append(
        f"{len(changed)} answers differ: {better} better, {worse} worse ({proof}); {unjustified} need a reason"
    )
    if len(both) < max(len(old), len(new)):
        lines.append(f"not compared, in one of the two alone: {len(old.keys() ^ new.keys())}")
    return "\n".join(lines), unjustified
