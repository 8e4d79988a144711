"""`python -m tests.localise`: makes jobs, asks tracekit, the vote and HTA, and prints who was right.

python -m tests.localise --cases 500 --seed 0 --jobs 2 --json out.json
python -m tests.localise --only 17 --keep /tmp/case17       one case again, its files kept
"""

import argparse
import json
import shutil
import signal
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.localise.answer import ask
from tests.localise.case import Case, make, save
from tests.localise.hta_baseline import MOST_RANKS, available, stragglers
from tests.localise.report import failures, tables
from tests.localise.score import Outcome, begun, judge_one
from tests.localise.vote import vote

LONGEST_S = 600
"""Time for one case, its simulations and all who answer."""


def one(
    seed: int,
    keep: str | None = None,
    kind: str | None = None,
    world: int | None = None,
    *,
    hta: bool = False,
) -> Outcome:
    """Run one case."""
    case = make(seed, kind, world)
    outcome = begun(case)
    folder = Path(keep) if keep else Path(tempfile.mkdtemp(prefix="localise-"))
    try:
        save(case, folder)
        ask(case, folder, outcome)
        outcome.vote = vote(folder)
        outcome.vote_result = judge_one(outcome.vote, case)
        if hta and case.job.layout.world <= MOST_RANKS:
            ask_hta(case, folder, outcome)
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
    return outcome


def ask_hta(case: Case, folder: Path, outcome: Outcome) -> None:
    """Fill in HTA's answer; no answer is none of the words that count."""
    found = stragglers(folder)
    if isinstance(found, str):
        outcome.hta_result = "error"
        return
    outcome.hta = found
    outcome.hta_result = judge_one(found[0] if found else None, case)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.localise", description=__doc__)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", help="every case as JSON, to this file")
    parser.add_argument("--only", type=int, help="one seed")
    parser.add_argument("--keep", help="with --only: leave the files in this folder")
    parser.add_argument("--kind", help="this fault in every case")
    parser.add_argument("--world", type=int, help="this many ranks in every case")
    parser.add_argument("--no-hta", action="store_true", help="do not ask HTA")
    return parser.parse_args()


def bounded(seed: int, chosen: argparse.Namespace, *, hta: bool) -> Outcome:
    """One case within its time."""
    signal.signal(signal.SIGALRM, expired)
    signal.alarm(LONGEST_S)
    try:
        return one(seed, chosen.keep, chosen.kind, chosen.world, hta=hta)
    finally:
        signal.alarm(0)


def expired(*_: object) -> None:
    """Ends a case that takes too long."""
    raise TimeoutError(f"longer than {LONGEST_S} s")


def main() -> int:
    """Run all cases, print what is not right as it comes, and then the tables."""
    chosen = options()
    seeds = [chosen.only] if chosen.only is not None else range(chosen.seed, chosen.seed + chosen.cases)
    hta = available() and not chosen.no_hta
    if not hta and not chosen.no_hta:
        print("HTA is not installed (pip install '.[hta]'): its column is empty", file=sys.stderr)
    outcomes: list[Outcome] = []
    with ProcessPoolExecutor(chosen.jobs) as pool:
        futures = {pool.submit(bounded, seed, chosen, hta=hta): seed for seed in seeds}
        for future in as_completed(futures):
            problem = future.exception()
            if problem is not None:
                print(f"seed {futures[future]}: not made: {problem!r}", flush=True)
                continue
            outcomes.append(future.result())
            told(outcomes[-1:], chosen.json, outcomes)
    print(tables(sorted(outcomes, key=lambda o: o.seed)))
    return 0


def told(new: list[Outcome], path: str | None, outcomes: list[Outcome]) -> None:
    """Print a new outcome that is not right, and keep the file of all outcomes whole."""
    if failures(new):
        print(failures(new), flush=True)
    if path:
        Path(path).write_text(json.dumps([o.row() for o in sorted(outcomes, key=lambda o: o.seed)], indent=1))


if __name__ == "__main__":
    sys.exit(main())
