"""`python -m tests.interventions`: real runs with a planted fault, promised and measured gain of its removal.

The four ranks are processes on Gloo that sleep for their emulated compute time. The trainer plants the fault in blocks
of steps, and blocks without it lie between them, so that both meet the same machine. Their difference is the measured
gain; `slowrank` reads the traces of the struck steps alone. `--keep FOLDER` keeps every run: the command called again
with that folder goes on where it was interrupted, and asks again about the runs in it.
"""

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import tracekit
from tests.interventions.planted import FAULTS, Planted, blocks
from tests.interventions.report import report
from tests.outside.job import Job, Setting, write_data
from tests.ranks.pool import RankPool

SETTINGS = (
    *("run.emulated_gflops=0.1", "model.layers=2", "data.batch_size=4", "numerics.attention=sdpa"),
    "evidence.measure_lag=false",
)
"""Few operators beside long emulated compute: little of a step is left to chance, and traces stay small."""


def main() -> int:
    """Run what is asked for and print the tables; return 0 also where gains are missed."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.interventions", description=__doc__, formatter_class=form
    )
    parser.add_argument("--only", default="", help="faults whose text and mesh hold this")
    parser.add_argument("--keep", type=Path, help="folder that keeps the runs")
    options = parser.parse_args()
    chosen = [planted for planted in FAULTS if options.only in f"{planted.fault} {planted.mesh}"]
    with tempfile.TemporaryDirectory(prefix="interventions-") as scratch:
        pool = RankPool()
        try:
            rows = [one_run(pool, options.keep or Path(scratch), planted) for planted in chosen]
        finally:
            pool.close()
    print(report(rows))
    return 0


def one_run(pool: RankPool, keep: Path, planted: Planted) -> dict[str, Any]:
    """Return what a run measured and what slowrank promises, ms a step; an error in place of both."""
    keep = keep.resolve()
    folder = keep / f"{planted.mesh}_{planted.fault}".replace(":", "_").replace(",", "_")
    row: dict[str, Any] = {"mesh": planted.mesh, "fault": planted.fault}
    try:
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            last = blocks()[-1].stop
            more = [part for text in SETTINGS for part in ("--set", text)]
            more += ["--steps", str(last), "--trace", f"{blocks()[0].start}:{last}", *planted.options()]
            job = Job(pool, folder, write_data(keep / "data"), planted.mesh, Setting(), *more)
            if not job.wait_for(last, 240):
                job.finish(5)
            job.finish()
            (folder / "done").touch()
        row |= measured(folder) | asked(folder, planted)
    except (RuntimeError, AssertionError, OSError, tracekit.TracekitError) as error:
        row["error"] = " ".join(str(error).split())[-200:]
    print(json.dumps(row), file=sys.stderr, flush=True)
    return row


def measured(folder: Path) -> dict[str, Any]:
    """Return the mean step of each block over steps and ranks, ms, and how much longer each struck block was."""
    files = (folder / "metrics").glob("*.jsonl")
    rows = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    means = [
        statistics.fmean(row["step_s"] * 1e3 for row in rows if row["step"] in block) for block in blocks()
    ]
    around = [(before + after) / 2 for before, after in zip(means[::2], means[2::2], strict=False)]
    gains = [struck - usual for struck, usual in zip(means[1::2], around, strict=True)]
    return {"blocks_ms": means, "gains_ms": gains}


def asked(folder: Path, planted: Planted) -> dict[str, Any]:
    """Return what slowrank promises of the struck steps, ms a step, and whether cause and ranks are right."""
    steps = [(block.start, block.stop) for block in blocks()[1::2]]
    finding = tracekit.slowrank(tracekit.load([str(folder / "trace")]), steps=steps)
    named = {suspect.rank for suspect in finding.suspects}
    own = next((s for s in finding.suspects if s.rank in planted.ranks), None)
    at_fault = own is not None and (finding.verdict == "slow_link" or named == set(planted.ranks))
    return {
        "verdict": finding.verdict,
        "cause": finding.cause,
        "named": sorted(named),
        "right": finding.cause == planted.cause and (at_fault or not planted.ranks),
        "promised_ms": finding.what_if.step_ms - finding.what_if.without_suspects_ms,
        "low_ms": own.lost_ms_low if own else None,
        "high_ms": own.lost_ms_high if own else None,
    }


if __name__ == "__main__":
    sys.exit(main())
