"""`python -m tests.shapes`: makes jobs of real shapes, asks tracekit and the vote, and prints who was right.

python -m tests.shapes --jobs 2 --json out.json             the 249 seeds of the first figures
python -m tests.shapes --cases 100 --seed 200               others; see tests.shapes.draw for what seeds hold
python -m tests.shapes --only 2031 --keep /tmp/case2031     one case again, its traces and its truth kept
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.shapes.answer import ask
from tests.shapes.case import make, save
from tests.shapes.draw import MEASURED, drawn_case
from tests.shapes.report import tables, told
from tests.shapes.score import RIGHT, Outcome, begun
from tests.shapes.vote import vote


def one(seed: int, keep: Path | None = None) -> Outcome:
    """The outcome of one case."""
    made = make(drawn_case(seed))
    outcome = begun(made)
    outcome.vote = vote(made)
    folder = keep or Path(tempfile.mkdtemp(prefix="shapes-"))
    try:
        save(made, folder / "traces")
        ask(folder / "traces", outcome)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return outcome


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.shapes", description=__doc__, formatter_class=form)
    parser.add_argument("--cases", type=int, help="how many; without --seed, evenly from the 249")
    parser.add_argument("--seed", type=int, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="cases at once")
    parser.add_argument("--json", type=Path, help="every case as JSON, to this file")
    parser.add_argument("--only", type=int, help="one seed")
    parser.add_argument("--keep", type=Path, help="with --only: leave the files in this folder")
    return parser.parse_args(arguments)


def seeds(chosen: argparse.Namespace) -> list[int]:
    """The seeds asked for."""
    if chosen.only is not None:
        return [chosen.only]
    if chosen.seed is not None:
        return list(range(chosen.seed, chosen.seed + (chosen.cases or 100)))
    count = min(chosen.cases or len(MEASURED), len(MEASURED))
    return [MEASURED[place * len(MEASURED) // count] for place in range(count)]


def main() -> int:
    """Run all cases, print what is not right as it comes, and then the tables."""
    chosen = options()
    outcomes: list[Outcome] = []
    keep = chosen.keep if chosen.only is not None else None
    with ProcessPoolExecutor(chosen.jobs) as pool:
        futures = {pool.submit(one, seed, keep): seed for seed in seeds(chosen)}
        for future in as_completed(futures):
            problem = future.exception()
            if problem is not None:
                print(f"seed {futures[future]}: not made: {problem!r}", flush=True)
                continue
            outcomes.append(future.result())
            if outcomes[-1].result != RIGHT or chosen.only is not None:
                print(told(outcomes[-1]), flush=True)
            if chosen.json:
                rows = [outcome.row() for outcome in sorted(outcomes, key=lambda o: o.seed)]
                chosen.json.write_text(json.dumps(rows, indent=1))
    print(tables(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
