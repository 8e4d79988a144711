"""Damaged files through the commands that read them: `python -m tests.fuzz --inputs 20000 --seed 1`.

Every input is made from (reader, seed) alone, so `--reader NAME --only SEED --keep DIR` makes it again. A table at the
end counts by reader: answers, refusals and faults (exit 70, crashes, hangs, memory, false flips of a verdict).
"""

import argparse
import os
import resource
import shutil
import sys
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path
from random import Random
from tempfile import mkdtemp
from unittest.mock import patch

from tests.fuzz.evidence_readers import EVIDENCE
from tests.fuzz.other_commands import COMMANDS_OF
from tests.fuzz.other_readers import OTHERS
from tests.fuzz.outcome import inside, outcome
from tests.fuzz.readers import TRACEKIT, read_once
from tests.fuzz.surroundings import SURROUNDINGS
from tracekit.workers import Limits, do_all

READERS = {**TRACEKIT, **EVIDENCE, **COMMANDS_OF, **OTHERS, **SURROUNDINGS}
SHARE = {
    "job": 4, "run.json": 40, "capture": 60, "operation table": 80, "trace": 100, "other command": 100, "dumps": 100,
    "TOML of a machine": 100, "run folder": 120, "ratios": 4, "streams": 20,
}  # fmt: skip
"""Parts of all inputs that a reader gets, by what one costs; those that are not named get `MOST`."""
MOST = 130
FINE = ("answered", "refused")
LIMITS = Limits(20.0, 4 << 30, 25, "hang", "memory", "crash")


class Player:
    """Runs one input after the other in a worker."""

    def __init__(self, root: Path) -> None:
        self._root = Path(mkdtemp(prefix="worker", dir=root))
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def __call__(self, task: tuple[str, int]) -> tuple[str, float]:
        """A word for the end of (reader, seed), and the seconds that it took."""
        folder = self._root / "x"
        (folder / "in").mkdir(parents=True)
        (folder / "tmp").mkdir()
        begin = time.perf_counter()
        try:
            end = play(*task, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return end, time.perf_counter() - begin


def play(reader: str, seed: int, folder: Path) -> str:
    """Make the input (reader, seed) in `folder`/in, run its command, and give a word for the end."""
    with inside(folder / "tmp"), patch("tracekit.ingest.reading.read_file", read_once):
        given = READERS[reader](Random(f"{reader}/{seed}"), folder / "in")
        end, out = outcome(given.command, given.arguments, folder / "in")
    wrong = given.judge(out) if end == "answered" else ""
    if given.unnamed and end in {"nameless", "many lines"}:
        return "refused"
    return wrong or end


def fuzz(inputs: int, seed: int, jobs: int, readers: list[str]) -> dict[str, Counter[str]]:
    """Counts of ends by reader, and on stderr the first seeds of every fault."""
    weights = [SHARE.get(r, MOST) for r in readers]
    tasks = []
    for reader, weight in zip(readers, weights, strict=True):
        tasks += [(reader, seed * 10_000_000 + n) for n in range(-(-inputs * weight // sum(weights)))]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    shown: Counter[tuple[str, str]] = Counter()
    slowest: dict[str, tuple[float, int]] = {}
    root = Path(mkdtemp(prefix="tracekit-fuzz-"))
    try:
        for index, result in do_all(tasks, partial(Player, root), jobs, LIMITS):
            reader, number = tasks[index]
            end, took = (str(result), 0.0) if isinstance(result, Exception) else result
            counts[reader][end] += 1
            slowest[reader] = max(slowest.get(reader, (0.0, 0)), (took, number))
            shown[reader, end] += end not in FINE
            if end not in FINE and (end == "flip" or shown[reader, end] <= 2):
                print(f"{reader}: {end}: --reader '{reader}' --only {number}", file=sys.stderr, flush=True)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    for reader, (took, number) in slowest.items():
        print(f"{reader}: slowest {took:.2f} s, seed {number}", file=sys.stderr)
    return counts


def table(counts: dict[str, Counter[str]]) -> str:
    """The counts as a Markdown table."""
    columns = ("answered", "refused", "exit 70", "crash", "hang", "memory", "flip", "other")
    lines = [f"| reader | inputs | {' | '.join(columns)} |", "|---" * (len(columns) + 2) + "|"]
    total: Counter[str] = Counter()
    for reader, ends in [*counts.items(), ("all", total)]:
        row: Counter[str] = Counter()
        for end, count in ends.items():
            word = "exit 70" if end.startswith("exit 70") else end
            row[word if word in columns else "other"] += count
        total += row if reader != "all" else Counter()
        lines.append(f"| {reader} | {sum(row.values())} | {' | '.join(str(row[c]) for c in columns)} |")
    return "\n".join(lines)


def again(reader: str, seed: int, keep: Path) -> None:
    """Make one input again, keep its files, and show how it ends."""
    for name in ("in", "tmp"):
        (keep / name).mkdir(parents=True)
    with inside(keep / "tmp"):
        given = READERS[reader](Random(f"{reader}/{seed}"), keep / "in")
        print(given.command.name, *given.arguments)
        found = outcome(given.command, given.arguments, keep / "in")
    print(*found, given.judge(found[1]) if found[0] == "answered" else "")


def main() -> None:
    """Run what the options say, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--reader", action="append", choices=list(READERS))
    parser.add_argument("--only", type=int)
    parser.add_argument("--keep", type=Path, default=None)
    args = parser.parse_args()
    if args.only is not None:
        again(args.reader[0], args.only, args.keep or Path(mkdtemp(prefix="fuzz-again-")))
        return
    begin = time.perf_counter()
    counts = fuzz(args.inputs, args.seed, args.jobs, args.reader or list(READERS))
    print(table(counts))
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    print(f"{time.perf_counter() - begin:.0f} s; the largest worker took {peak} MiB")


if __name__ == "__main__":
    main()
