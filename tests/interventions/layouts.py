"""`python -m tests.interventions.layouts`: the step of other layouts, predicted from traces, beside real runs of them.

Every layout of four ranks is run in turn, some rounds of it; `tracekit whatif --to-mesh` reads the traces of one run
and predicts the step of the others. The measured step is the median over the rounds. `--keep FOLDER` keeps the runs.
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import tracekit
from tests.causes.report import table
from tests.interventions.__main__ import one_run
from tests.ranks.pool import RankPool
from tracekit.analysis.questions.answer import answer
from tracekit.errors import TracekitError

PAIRS = (
    ("tp=2,dp=2", "dp=4"), ("tp=2,dp=2", "tp=4"), ("cp=2,dp=2", "dp=4"), ("cp=2,dp=2", "cp=4"),
    ("pp=2,dp=2", "dp=4"), ("pp=2,dp=2", "pp=4"), ("tp=2,pp=2", "tp=4"), ("tp=2,pp=2", "pp=4"),
    ("tp=2,cp=2", "tp=4"), ("tp=2,cp=2", "cp=4"),
)  # fmt: skip
"""(recorded, predicted)."""


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
        keep.mkdir(parents=True, exist_ok=True)
        pool = RankPool()
        try:
            steps: dict[str, list[float]] = {mesh: [] for mesh in meshes}
            for number in range(options.rounds):
                for mesh in meshes:
                    row = one_run(pool, keep, keep / f"{mesh}_{number}", mesh, None)
                    print(mesh, number, row, file=sys.stderr, flush=True)
                    steps[mesh] += [row["step_ms"]] if "step_ms" in row else []
        finally:
            pool.close()
        print(report(keep, options.rounds, {m: own for m, own in steps.items() if own}))
    return 0


def report(keep: Path, rounds: int, steps: dict[str, list[float]]) -> str:
    """Return the table of the pairs, that of the layouts' steps, and a line with the errors."""
    rows, errors = [], []
    for recorded, wanted in PAIRS:
        found = [predicted(keep / f"{recorded}_{number}", wanted) for number in range(rounds)]
        known = [one for one in found if not isinstance(one, str)]
        if not known or wanted not in steps:
            rows.append((recorded, wanted, "–", "–", "–", "–", "–", found[0]))
            continue
        low, likely, high = (statistics.median(values) for values in zip(*known, strict=True))
        measured = statistics.median(steps[wanted])
        errors.append(abs(likely / measured - 1))
        inside = "inside" if low <= measured <= high else "outside"
        here = statistics.median(steps[recorded])
        rows.append((
            recorded, wanted, f"{here:.0f}", f"{likely:.0f}", f"{low:.0f} to {high:.0f}", f"{measured:.0f}",
            f"{likely / measured - 1:+.1%}", inside,
        ))  # fmt: skip
    head = (
        "recorded", "wanted", "recorded ms", "predicted ms", "interval", "measured ms", "error", "measured lies",
    )  # fmt: skip
    spread = [
        (m, len(o), f"{min(o):.0f}", f"{statistics.median(o):.0f}", f"{max(o):.0f}") for m, o in steps.items()
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
