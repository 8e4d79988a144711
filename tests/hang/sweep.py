"""How often `tracekit hang` is right on simulated hangs with incomplete evidence, and how often it blames innocents.

`python -m tests.hang.sweep --seed 7000000 --cases 100` plants a random fault for every seed and shows the dumps eight
times: whole, with rings cut to the last 5 to 40 calls, with outstanding calls only, without `pg_status`, with groups
inside groups, with one to three victims' files gone, the same with short rings, and with one victim's file cut.
"""

import argparse
import pickle
import random
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tests.hang.simulate import make
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps

SHOWN = ("whole", "ring", "active", "no_status", "nested", "dropped", "dropped_ring", "cut")
OUTCOMES = ("right", "inconclusive", "none", "innocent")


@dataclass(frozen=True)
class Answer:
    seed: int
    shown: str
    fault: str
    outcome: str  # of OUTCOMES
    told: str


def files_of(seed, shown):
    """The case of a seed, and its dumps as bytes by rank, shown in one of the ways of `SHOWN`."""
    rng = random.Random(seed * 7 + 1)
    options = {
        "ring": {"ring": rng.choice([5, 8, 20])},
        "dropped_ring": {"ring": rng.choice([5, 8, 20, 40])},
        "active": {"active_only": True},
        "no_status": {"status": False},
        "nested": {"nested": True},
    }
    case = make(seed, **options.get(shown, {}))
    files = {rank: pickle.dumps(dump) for rank, dump in case.dumps.items()}
    victims = [rank for rank in files if rank != case.culprit]
    if shown.startswith("dropped"):
        for rank in rng.sample(victims, rng.choice([1, 2, 3])):
            del files[rank]
    if shown == "cut":
        rank = rng.choice(victims)
        files[rank] = files[rank][: int(len(files[rank]) * rng.uniform(0.3, 0.98))]
    return case, files


def answer(job):
    """Judge one (seed, way of showing)."""
    case, files = files_of(*job)
    with tempfile.TemporaryDirectory() as folder:
        for rank, text in files.items():
            (Path(folder) / f"rank_{rank}").write_bytes(text)
        finding = analyse(load_dumps([folder]))
    named = {c.rank for c in finding.culprits}
    outcome = "innocent" if named - {case.culprit} else "right" if named else finding.verdict
    return Answer(*job, case.fault, outcome, f"planted {case.culprit}; {finding.reason}")


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.hang.sweep", description=__doc__)
    parser.add_argument("--seed", type=int, required=True, help="first seed")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--shown", default=",".join(SHOWN), help="only these ways, joined by commas")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    args = parser.parse_args()
    ways = args.shown.split(",")
    jobs = [(args.seed + n, way) for way in ways for n in range(args.cases)]
    counts = Counter()
    with ProcessPoolExecutor(args.jobs) as pool:
        for found in pool.map(answer, jobs, chunksize=4):
            counts[found.shown, found.outcome] += 1
            if found.outcome == "innocent":
                print(f"seed {found.seed} {found.shown} {found.fault}: {found.told}", file=sys.stderr)
    print("| shown | " + " | ".join(OUTCOMES) + " |")
    print("|---" * (1 + len(OUTCOMES)) + "|")
    for way in ways:
        print(f"| {way} | " + " | ".join(str(counts[way, o]) for o in OUTCOMES) + " |")


if __name__ == "__main__":
    main()
