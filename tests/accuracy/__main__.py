"""`python -m tests.accuracy --cases 200 --seed S`: how often the answer is right, per kind of fault.

`--cases` faulty jobs, each of which costs at least 10 % of its step, and half as many healthy ones. Seeds
below 10 000 are for development; a reported figure uses seeds that nobody has looked at before.
"""

import argparse
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from tests.accuracy.score import mark_planned, rates, table
from tests.generator.case import WEIGHTS

HEALTHY_SEEDS = 5_000  # between a faulty seed and its healthy companion, so that no seed is used twice


def plan(cases: int, seed: int, kinds: list[str] | None) -> list[tuple[int, str]]:
    """(seed, kind) of each case; kinds are drawn by weight from the seed, so that any range of seeds is a fair mix."""
    faulty = [k for k in WEIGHTS if not k.startswith("healthy")]
    healthy = [k for k in WEIGHTS if k.startswith("healthy")]
    out = []
    for number, pool, start in ((cases, faulty, seed), (cases // 2, healthy, seed + HEALTHY_SEEDS)):
        weight = np.array([WEIGHTS[k] for k in pool], float)
        share = weight / weight.sum()
        seeds = range(start, start + number)
        out += [(i, str(np.random.default_rng([i, 9]).choice(pool, p=share))) for i in seeds]
    return [(i, k) for i, k in out if kinds is None or k in kinds]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.accuracy", description=__doc__)
    parser.add_argument("--cases", type=int, default=200, help="faulty cases; healthy ones are half as many")
    parser.add_argument("--seed", type=int, default=0, help="first seed")
    parser.add_argument("--kinds", help="only these kinds, joined by commas")
    parser.add_argument("--jobs", type=int, default=1, help="worker processes")
    parser.add_argument("--json", metavar="FILE", help="write every case's outcome")
    options = parser.parse_args()
    jobs = plan(options.cases, options.seed, options.kinds.split(",") if options.kinds else None)
    marks = []
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        for done, result in enumerate(pool.map(mark_planned, jobs), 1):
            marks.append(result)
            if result.outcome != "right":
                said = f"seed {result.seed} {result.kind}: {result.outcome}"
                both = f"    truth  {result.truth}\n    answer {result.answer}"
                print(f"[{done}/{len(jobs)}] {said}\n{both}", file=sys.stderr, flush=True)
    print(table(marks))
    summary = rates(marks)
    print(
        f"top-1 right {summary['top1']:.1%} of {summary['faulty']} faulty cases; another rank blamed in "
        f"{summary['blamed_innocents']}; false alarms {summary['false_alarms']:.1%} of "
        f"{summary['healthy']} healthy; what the fault costs is off by {summary['price_error_median']:.0%} (median), "
        f"{summary['price_error_p90']:.0%} (90th percentile)"
    )
    if options.json:
        text = json.dumps({"summary": summary, "cases": [m.as_dict() for m in marks]}, indent=1)
        part = Path(f"{options.json}.{os.getpid()}.part")
        part.write_text(text)
        part.replace(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
