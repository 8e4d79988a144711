"""`python -m tests.trainers`: sixty trainers, healthy and broken, and what `numerics compare` says of each."""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.trainers.bench import run_bench
from tests.trainers.cases import CASES
from tests.trainers.report import page


def main() -> None:
    """Prints the table; exit code 1 where an answer is a false alarm, a false all-clear, an untrue claim or a crash."""
    parser = argparse.ArgumentParser(prog="python -m tests.trainers", description=__doc__)
    parser.add_argument(
        "--only", action="append", default=[], help="cases whose name contains this; repeatable"
    )
    parser.add_argument("--jobs", type=int, default=2, help="runs and commands at once")
    parser.add_argument("--json", type=Path, help="write the rows as JSON")
    parser.add_argument(
        "--keep", type=Path, help="keep runs and answers here; what is there is not made again"
    )
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.only or any(part in case.name for part in options.only)]
    if not chosen:
        parser.error("no case has such a name; the cases are " + ", ".join(case.name for case in CASES))
    rows = run_bench(
        chosen, options.jobs, options.keep, lambda line: print(line, file=sys.stderr, flush=True)
    )
    print(page(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    sys.exit(
        any(row.judgement in {"false alarm", "false all-clear", "untrue claim", "crash"} for row in rows)
    )


if __name__ == "__main__":
    main()
