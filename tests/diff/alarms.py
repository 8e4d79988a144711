"""`python -m tests.diff.alarms --cases 100 --seed S`: how often `tracekit diff` tells equal jobs apart.

Each case is a healthy simulated job. Its steps in two halves are two windows of one run; a second draw of all that
varies (work, hosts, transfers, the speed of each device) is another run of it, on other machines.
"""

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.generator import Case, generate
from tests.generator.case import _windows, _World
from tests.generator.engine import simulate
from tests.generator.faults import draw_durations
from tracekit.analysis.diff.analyse import compared
from tracekit.analysis.diff.side import Side, side_of
from tracekit.findings.diff import DiffFinding
from tracekit.ingest import load
from tracekit.thresholds.report import CHANGES_SHOWN

OTHER_MACHINES = 10_000_000  # from the seed of a case to that of its second run


def repeated(case: Case) -> Case:
    """The same job once more: all that varies is drawn again."""
    again = draw_durations(case.job, case.program, case.seed + OTHER_MACHINES)
    times = simulate(case.program, again, eager=case.job.eager)
    world = _World(case.job, case.groups, case.program, again)
    windows = _windows(world, times, case.captured, ragged=False, rng=None)
    return replace(case, times=times, capture=replace(case.capture, windows=windows))


def side(case: Case, folder: Path, steps=None) -> Side:
    """The case as one side of a comparison."""
    if not folder.exists():
        case.write(folder)
    return side_of(load([str(folder)]), None, None, steps, None)


def told_apart(finding: DiffFinding) -> dict[str, bool]:
    """What of two equal runs is said to differ: the step, and by kind what the text would list as proven."""
    felt = CHANGES_SHOWN * finding.step.before_ns
    alarm = {"step": finding.verdict in {"slower", "faster"}, "undecided": finding.verdict == "inconclusive"}
    kinds = {"part": finding.parts, "rank": finding.ranks, "kernel": finding.kernels}
    return alarm | {
        name: any(c.proven and abs(c.change_ns) >= felt for c in rows) for name, rows in kinds.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.diff.alarms", description=__doc__)
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--steps", type=int, default=8, help="steps of each side")
    options = parser.parse_args()
    counts = {"two windows": Counter(), "two runs": Counter()}
    for seed in range(options.seed, options.seed + options.cases):
        case = generate(
            seed, kind="healthy", world=8, steps=2 * options.steps, ragged=False, missing=set(), truncated={}
        )
        with TemporaryDirectory() as name:
            first = case.first_step + case.captured[0]
            halves = [
                [(first, first + options.steps)],
                [(first + options.steps, first + 2 * options.steps)],
            ]
            one, two = (side(case, Path(name) / "one", half) for half in halves)
            other = side(repeated(case), Path(name) / "other", halves[0])
        for pair, finding in (("two windows", compared(one, two)), ("two runs", compared(one, other))):
            counts[pair].update(what for what, said in told_apart(finding).items() if said)
            if told_apart(finding)["step"]:
                print(f"seed {seed}, {pair}: {finding.verdict}, {finding.reason}", file=sys.stderr)
    for pair, found in counts.items():
        print(
            f"{pair}: "
            + ", ".join(f"{w} {found[w]}" for w in ("step", "undecided", "part", "rank", "kernel"))
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
