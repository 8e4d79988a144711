"""`python -m tests.paired.variation`: which thresholds of `slowrank` an answer depends on.

Each threshold is doubled and halved (a share above a half: its distance to 1). Many are varied at once; where the
answer differs, half of them are tried, and so on. A threshold that changed one answer is not varied in later jobs, so
the table names the first job that changed, and whether its answer was better or worse. A threshold that changes
nothing anywhere has no case here: it may be the same notion as another one, or nothing at all.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from tests.house import measures
from tests.paired.ablation import answered, better, in_turn, options, tried
from tests.paired.jobs import Truth
from tests.paired.matched import Matched, matched_of

AT_ONCE: Final = 32
"""Thresholds that are varied together at first."""
HALF: Final = 0.5
Variation = tuple[str, str]
"""A threshold's name, and "doubled" or "halved"."""


def varied(value: float, how: str) -> float:
    """A threshold doubled or halved; a share above a half keeps half or twice its distance to 1."""
    if isinstance(value, int):
        return 2 * value if how == "doubled" else max(value // 2, 1)
    if HALF < value < 1.0:
        return 1.0 - (1.0 - value) * (0.5 if how == "doubled" else 2.0)
    return value * (2.0 if how == "doubled" else 0.5)


def thresholds() -> dict[str, float]:
    """The numbers among the thresholds that modules of slowrank read, by name."""
    code = measures.here()
    names = measures.thresholds_of_slowrank(code)
    homes = [import_module(code.module[path]) for path in code.within("tracekit/thresholds")]
    found = {name: vars(home)[name] for home in homes for name in sorted(names) if name in vars(home)}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


@contextmanager
def changed(variations: list[Variation], values: dict[str, float]) -> Iterator[None]:
    """All modules of tracekit with thresholds varied."""
    modules = [vars(m) for name, m in list(sys.modules.items()) if name.startswith("tracekit.")]
    undo = []
    for name, how in variations:
        for module in modules:
            if module.get(name) is values[name]:
                module[name] = varied(values[name], how)
                undo.append((module, name))
    try:
        yield
    finally:
        for module, name in undo:
            module[name] = values[name]


def changes_of(suite: str, seed: int, keep: Path | None, todo: list[Variation]) -> dict[str, Any]:
    """The variations among `todo` with which the answer to a job differs, each with 1 (better), 0 or -1 (worse)."""
    values = thresholds()
    with matched_of(suite, seed, keep) as (truth, matched):
        before = answered(matched)
        found: dict[str, int] = {}
        for how in ("doubled", "halved"):
            mine = [v for v in todo if v[1] == how]
            for start in range(0, len(mine), AT_ONCE):
                found |= _differing(matched, truth, before, mine[start : start + AT_ONCE], values)
    return {"key": truth.key, "asked": len(todo), "changes": found}


def _differing(
    matched: Matched, truth: Truth, before: dict[str, Any], todo: list[Variation], values: dict[str, float]
) -> dict[str, int]:
    with changed(todo, values):
        after = tried(matched)
    if after == before:
        return {}
    if len(todo) == 1:
        return {" ".join(todo[0]): better(truth, before, after)}
    middle = len(todo) // 2
    halves = (todo[:middle], todo[middle:])
    return {k: v for half in halves for k, v in _differing(matched, truth, before, half, values).items()}


def table(rows: list[dict[str, Any]]) -> str:
    """The thresholds as Markdown: the first job that changed, for each direction."""
    first = {name: (row["key"], gain) for row in reversed(rows) for name, gain in row["changes"].items()}
    lines = ["| threshold | doubled | halved |", "|---|---|---|"]

    def told(name: str, how: str) -> str:
        key, gain = first.get(f"{name} {how}", ("-", 0))
        return f"{key} {('worse', '', 'better')[gain + 1]}".strip()

    ordered = sorted(thresholds(), key=lambda n: (told(n, "doubled") + told(n, "halved") != "--", n))
    lines += [f"| `{name}` | {told(name, 'doubled')} | {told(name, 'halved')} |" for name in ordered]
    return "\n".join(lines)


def main() -> None:
    """Prints which thresholds decide an answer."""
    chosen = options(__doc__)
    silent: list[Variation] = [(name, how) for name in thresholds() for how in ("doubled", "halved")]

    def learn(row: dict[str, Any]) -> None:
        silent[:] = [v for v in silent if " ".join(v) not in row["changes"]]

    rows, failed = in_turn(chosen, lambda: (changes_of, list(silent)), learn)
    print(f"{len(rows)} jobs, {failed} that could not be read\n\n{table(rows)}")


if __name__ == "__main__":
    main()
