"""`python -m tests.paired`: the same jobs asked of two states of the code, or of one state beside the goldens.

python -m tests.paired --old HEAD~3 --new .                  two states: revisions, folders, or files of answers
python -m tests.paired --old tests/paired/goldens.jsonl --new .      what changed since the goldens
python -m tests.paired --new . --save tests/paired/goldens.jsonl     the goldens made again
python -m tests.paired --old HEAD~3 --new . --suite localise --seeds 9999000:200    unseen jobs

Jobs are made once and kept in --keep. Exit code 1: an answer got worse.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from tests.paired.ask import Checkout, ask, checkout
from tests.paired.compare import load, report, summary
from tests.paired.jobs import ROOT, SUITES, asked, make
from tests.paired.judge import holds_truth, judged, over_steps, price_error


def answered(suite: str, seed: int, codes: dict[str, Checkout], keep: Path, *, drop: bool) -> dict[str, dict]:
    """The row of one job for each state of the code, by the state's name."""
    truth = make(suite, seed, keep)
    rows = {}
    for name, code in codes.items():
        answer = ask(code, keep / truth.key / "traces", truth.mesh)
        compared = over_steps(truth, answer.pop("steps", []))
        points = price_error(compared, answer)
        rows[name] = {
            "key": truth.key, "kind": truth.kind, "culprits": truth.culprits, "true_slowdown": truth.slowdown,
            "word": judged(truth, answer), "points": None if points is None else round(points, 2),
            "held": holds_truth(compared, answer), "held_all": holds_truth(truth, answer), "answer": answer,
        }  # fmt: skip
    if drop:
        shutil.rmtree(keep / truth.key, ignore_errors=True)
    return rows


@contextmanager
def state(name: str, scratch: Path) -> Iterator[Checkout]:
    """The code that `name` says: a folder, or a revision that is checked out for the time."""
    if Path(name).is_dir():
        yield checkout(Path(name).resolve(), scratch)
        return
    folder = scratch / f"tree-{name.replace('/', '_')}"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), name], check=True)
    try:
        yield checkout(folder, scratch)
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=False)


def run(chosen: argparse.Namespace, names: list[str], scratch: Path) -> dict[str, dict[str, dict]]:
    """Rows of all jobs by state of the code and name of the job."""
    keep = chosen.keep or scratch / "jobs"
    found: dict[str, dict[str, dict]] = {name: {} for name in names}
    states = {name: state(name, scratch) for name in names}
    codes = {name: manager.__enter__() for name, manager in states.items()}
    try:
        with ProcessPoolExecutor(chosen.jobs) as pool:
            jobs = asked(chosen.suite or list(SUITES), chosen.seeds)[:: chosen.every]
            waiting = {
                pool.submit(answered, *job, codes, keep, drop=chosen.keep is None): job for job in jobs
            }
            for done, future in enumerate(as_completed(waiting), 1):
                if (problem := future.exception()) is not None:
                    print(f"{waiting[future]}: not made: {problem!r}", file=sys.stderr, flush=True)
                    continue
                for name, row in future.result().items():
                    found[name][row["key"]] = row
                print(f"\r{done}/{len(jobs)}", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        print("\ninterrupted: what was asked until now is compared", file=sys.stderr, flush=True)
    finally:
        for manager in states.values():
            manager.__exit__(None, None, None)
    return found


def span(text: str) -> list[int]:
    """The seeds of FIRST:COUNT, or of a list joined by commas."""
    first, _, count = text.partition(":")
    return list(range(int(first), int(first) + int(count))) if count else [int(n) for n in text.split(",")]


def options() -> argparse.Namespace:
    """The command line."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m tests.paired", description=__doc__, formatter_class=form)
    parser.add_argument("--old", help="a revision, a folder, or a file of answers")
    parser.add_argument("--new", default=".", help="the same; this checkout by default")
    parser.add_argument(
        "--suite", action="append", choices=list(SUITES), help="only this suite; may be repeated"
    )
    parser.add_argument(
        "--seeds", type=span, metavar="FIRST:COUNT|A,B", help="these seeds instead of those looked at"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only every N-th of these jobs")
    parser.add_argument("--jobs", type=int, default=2, help="jobs at once")
    parser.add_argument("--keep", type=Path, help="keep the traces here, for the next call")
    parser.add_argument("--save", type=Path, help="write the answers of --new to this file")
    return parser.parse_args()


def main() -> int:
    """Ask what is not a file of answers, save, compare."""
    chosen = options()
    asked_of = [name for name in (chosen.old, chosen.new) if name and not Path(name).is_file()]
    with tempfile.TemporaryDirectory(prefix="paired-") as scratch:
        found = run(chosen, list(dict.fromkeys(asked_of)), Path(scratch)) if asked_of else {}
    if asked_of and not any(found.values()):
        sys.exit("no job was made: see above why each failed, or choose others (--suite, --seeds, --every)")
    old, new = (
        found[name] if name in found else load(Path(name)) if name else {}
        for name in (chosen.old, chosen.new)
    )
    if chosen.save:
        lines = [
            json.dumps({**row, "answer": untimed(row)}, sort_keys=True) for _, row in sorted(new.items())
        ]
        chosen.save.write_text("\n".join(lines) + "\n")
    if not chosen.old:
        print(f"\n{summary(new.values())}")
        return 0
    text, worse = report(old, new)
    print(f"\n{text}")
    return 1 if worse else 0


def untimed(row: dict) -> dict:
    """The answer of a row without the seconds it took, so that the same state gives the same bytes."""
    return {name: value for name, value in row["answer"].items() if name != "seconds"}


if __name__ == "__main__":
    sys.exit(main())
