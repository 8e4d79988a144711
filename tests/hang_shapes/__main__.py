"""`python -m tests.hang_shapes`: makes dumps of hung jobs, asks tracekit, and prints who was right.

python -m tests.hang_shapes --jobs 2 --json out.json         the 210 seeds of the first figures
python -m tests.hang_shapes --cases 100 --seed 5000          others
python -m tests.hang_shapes --only 31 --keep /tmp/case31     one case again, its dumps and its truth kept
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.hang_shapes.answer import ask
from tests.hang_shapes.case import make, save
from tests.hang_shapes.draw import drawn_case
from tests.hang_shapes.fault import ASKED, FAULTS
from tests.hang_shapes.report import tables, told
from tests.hang_shapes.score import RIGHT, Outcome


def one(seed: int, keep: Path | None = None, cause: str | None = None) -> Outcome:
    """The outcome of one case."""
    made = make(drawn_case(seed, cause))
    case = made.case
    outcome = Outcome(seed, case.shape, case.cause, case.job.mesh.world, made.culprits, made.fault.kinds)
    folder = keep or Path(tempfile.mkdtemp(prefix="hang-shapes-"))
    try:
        save(made, folder / "dumps")
        ask(folder / "dumps", outcome)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return outcome


def options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.hang_shapes", description=__doc__, formatter_class=form
    )
    parser.add_argument("--cases", type=int, default=210, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2, help="cases at once")
    parser.add_argument("--json", type=Path, help="every case as JSON, to this file")
    parser.add_argument("--only", type=int, help="one seed")
    parser.add_argument("--cause", choices=[*FAULTS, *ASKED], help="all cases with this fault")
    parser.add_argument("--keep", type=Path, help="with --only: leave the files in this folder")
    return parser.parse_args(arguments)


def seeds(chosen: argparse.Namespace) -> Sequence[int]:
    """The seeds asked for."""
    return [chosen.only] if chosen.only is not None else range(chosen.seed, chosen.seed + chosen.cases)


def main() -> int:
    """Run all cases, print what is not right as it comes, and then the tables."""
    chosen = options()
    outcomes: list[Outcome] = []
    keep = chosen.keep if chosen.only is not None else None
    with ProcessPoolExecutor(chosen.jobs) as pool:
        futures = {pool.submit(one, seed, keep, chosen.cause): seed for seed in seeds(chosen)}
        for future in as_completed(futures):
            problem = future.exception()
            if problem is not None:
                print(f"seed {futures[future]}: not made: {problem!r}", flush=True)
                continue
            outcomes.append(future.result())
            if outcomes[-1].result != RIGHT or chosen.only is not None:
                print(told(outcomes[-1]), flush=True)
    outcomes.sort(key=lambda outcome: outcome.seed)
    if chosen.json:
        chosen.json.write_text(json.dumps([outcome.row() for outcome in outcomes], indent=1))
    print(tables(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
