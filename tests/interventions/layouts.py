"""`python -m tests.interventions.layouts`: the step of other layouts, predicted from traces, beside real runs of them.

Every layout of four ranks is run in turn, some rounds of it; `tracekit whatif --to-mesh` reads the traces of one run
and predicts the step of the others. Measured and predicted steps are medians over the rounds. `--keep FOLDER` keeps the
runs.
"""

import argparse
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

import tracekit
from tests.causes.report import table
from tests.outside.job import WARM_UP, Job, Setting, step_ms, write_data
from tests.ranks.pool import RankPool
from tracekit.analysis.questions.answer import answer
from tracekit.errors import TracekitError

PAIRS = (
    ("tp=2,dp=2", "dp=4"), ("tp=2,dp=2", "tp=4"), ("cp=2,dp=2", "dp=4"), ("cp=2,dp=2", "cp=4"),
    ("pp=2,dp=2", "dp=4"), ("pp=2,dp=2", "pp=4"), ("tp=2,pp=2", "tp=4"), ("tp=2,pp=2", "pp=4"),
    ("tp=2,cp=2", "tp=4"), ("tp=2,cp=2", "cp=4"),
)  # fmt: skip
"""(recorded, wanted)."""
SETTINGS = ("run.emulated_gflops=0.15", "numerics.attention=sdpa", "evidence.measure_lag=false")
STEPS = 5
"""Traced steps."""


def main() -> int:
    """Run the layouts, print the table of predictions; return 0 also where they are far off."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.interventions.layouts", description=__doc__, formatter_class=form
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each layout")
    parser.add_argument("--keep", type=Path, help="folder that keeps the runs")
    options = parser.parse_args()
    meshes = list(dict.fromkeys(mesh for pair in PAIRS for mesh in pair))
    with tempfile.TemporaryDirectory(prefix="layouts-") as scratch:
        keep = (options.keep or Path(scratch)).resolve()
        pool = RankPool()
        try:
            steps: dict[str, list[float]] = {mesh: [] for mesh in meshes}
            for number in range(options.rounds):
                for mesh in meshes:
                    steps[mesh] += one_run(pool, keep, mesh, number)
        finally:
            pool.close()
        print(report(keep, options.rounds, {mesh: own for mesh, own in steps.items() if own}))
    return 0


def one_run(pool: RankPool, keep: Path, mesh: str, number: int) -> list[float]:
    """Return the mean step of a run of the layout, ms; nothing where it failed."""
    folder = keep / f"{mesh}_{number}"
    try:
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            more = [part for text in SETTINGS for part in ("--set", text)]
            last = WARM_UP + STEPS
            more += ["--steps", str(last), "--trace", f"{WARM_UP}:{last}"]
            job = Job(pool, folder, write_data(keep / "data"), mesh, Setting(), *more)
            if not job.wait_for(last, 240):
                job.finish(5)
            job.finish()
            (folder / "done").touch()
        return [step_ms(folder)]
    except (RuntimeError, AssertionError, OSError) as error:
        print(f"{mesh}, round {number}: {' '.join(str(error).split())[-200:]}", file=sys.stderr, flush=True)
        return []


def report(keep: Path, rounds: int, steps: dict[str, list[float]]) -> str:
    """Return the table of the pairs, that of the layouts' steps, and a line with the errors."""
    rows, errors = [], []
    for recorded, wanted in PAIRS:
        folders = [keep / f"{recorded}_{number}" for number in range(rounds)]
        found = [predicted(folder, wanted) for folder in folders if (folder / "done").exists()]
        known = [one for one in found if not isinstance(one, str)]
        if not known or wanted not in steps:
            rows.append(
                (recorded, wanted, "–", "–", "–", "–", "–", *[one for one in found if one not in known][:1])
            )
            continue
        low, likely, high = (statistics.median(values) for values in zip(*known, strict=True))
        measured, here = statistics.median(steps[wanted]), statistics.median(steps[recorded])
        errors.append(abs(likely / measured - 1))
        inside = "inside" if low <= measured <= high else "outside"
        rows.append((
            recorded, wanted, f"{here:.0f}", f"{likely:.0f}", f"{low:.0f} to {high:.0f}", f"{measured:.0f}",
            f"{likely / measured - 1:+.1%}", inside,
        ))  # fmt: skip
    head = (
        "recorded", "wanted", "recorded ms", "predicted ms", "interval", "measured ms", "error", "measured lies",
    )  # fmt: skip
    spread = [
        (mesh, len(own), f"{min(own):.0f}", f"{statistics.median(own):.0f}", f"{max(own):.0f}")
        for mesh, own in steps.items()
    ]
    line = (
        f"error: median {statistics.median(errors):.1%}, largest {max(errors):.1%}"
        if errors
        else "no prediction"
    )
    return "\n\n".join(
        (table(head, rows), table(("layout", "runs", "least ms", "median", "most"), spread), line)
    )


def predicted(folder: Path, mesh: str) -> tuple[float, float, float] | str:
    """Return the low, likely and high prediction from the traces of a run, ms; the refusal as text."""
    try:
        found = answer(tracekit.load([str(folder / "trace")]), layouts=(mesh,)).answers[0]
    except TracekitError as error:
        return str(error)
    return found.without_ms_low, found.without_ms, found.without_ms_high


if __name__ == "__main__":
    sys.exit(main())
