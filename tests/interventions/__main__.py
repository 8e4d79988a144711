"""`python -m tests.interventions`: real runs with a planted fault, promised and measured gain of its removal.

The four ranks are processes on Gloo that sleep for their emulated compute time; the fault is planted by the trainer.
Each faulty run lies between two runs of the same mesh without a fault: their mean step less than its own is the
measured gain of one round. `slowrank` reads the traces of the faulty runs alone. `--keep FOLDER` keeps every run:
the command called again with that folder goes on where it was interrupted, and asks again about the runs in it.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tracekit
from tests.interventions.planted import FAULTS, Planted
from tests.interventions.report import report
from tests.outside.job import TRACED, WARM_UP, Job, Setting, step_ms, write_data
from tests.ranks.pool import RankPool

FASTER = ("run.emulated_gflops=0.4", "evidence.measure_lag=false")


def main() -> int:
    """Run what is asked for and print the tables; return 0 also where gains are missed."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m tests.interventions", description=__doc__, formatter_class=form
    )
    parser.add_argument("--only", default="", help="faults whose text and mesh hold this")
    parser.add_argument("--rounds", type=int, default=3, help="faulty runs of each fault")
    parser.add_argument("--keep", type=Path, help="folder that keeps the runs and their rows")
    options = parser.parse_args()
    chosen = [planted for planted in FAULTS if options.only in f"{planted.fault} {planted.mesh}"]
    with tempfile.TemporaryDirectory(prefix="interventions-") as scratch:
        keep = (options.keep or Path(scratch)).resolve()
        keep.mkdir(parents=True, exist_ok=True)
        pool = RankPool()
        try:
            rows = [
                row
                for number in range(options.rounds)
                for mesh in dict.fromkeys(planted.mesh for planted in chosen)
                for row in one_round(pool, keep, [p for p in chosen if p.mesh == mesh], number)
            ]
        finally:
            pool.close()
    print(report(rows))
    return 0


def one_round(pool: RankPool, keep: Path, faults: Sequence[Planted], number: int) -> list[dict[str, Any]]:
    """Return a row for each run of a mesh: without a fault and with one in turn, first and last without."""
    mesh, rows = faults[0].mesh, list[dict[str, Any]]()
    for index in range(2 * len(faults) + 1):
        planted = faults[index // 2] if index % 2 else None
        name = f"{mesh}_{number}_{planted.fault if planted else f'none{index // 2}'}".replace(":", "_")
        row = one_run(pool, keep, keep / name.replace(",", "_"), mesh, planted)
        rows.append({"mesh": mesh, "round": number, "fault": planted.fault if planted else None, **row})
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    for before, row, after in zip(rows[::2], rows[1::2], rows[2::2], strict=False):
        if all("step_ms" in one for one in (before, row, after)):
            row["gain_ms"] = row["step_ms"] - (before["step_ms"] + after["step_ms"]) / 2
    return rows


def one_run(pool: RankPool, keep: Path, folder: Path, mesh: str, planted: Planted | None) -> dict[str, Any]:
    """Return the mean step of a run, and the answer where a fault was planted; an error in place of both."""
    try:
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            more = [part for text in FASTER for part in ("--set", text)]
            more += ["--fault", planted.fault] if planted else []
            job = Job(pool, folder, write_data(keep / "data"), mesh, Setting(), *more)
            if not job.wait_for(WARM_UP + TRACED, 240):
                job.finish(5)
            job.finish()
            (folder / "done").touch()
        return {"step_ms": step_ms(folder)} | (asked(folder, planted) if planted else {})
    except (RuntimeError, AssertionError, OSError, tracekit.TracekitError) as error:
        return {"error": " ".join(str(error).split())[:200]}


def asked(folder: Path, planted: Planted) -> dict[str, Any]:
    """Return what slowrank promises of a run, in ms a step, and whether verdict, cause and rank are right."""
    finding = tracekit.slowrank(tracekit.load([str(folder / "trace")]))
    named = {suspect.rank for suspect in finding.suspects}
    own = next((s for s in finding.suspects if s.rank in planted.ranks), None)
    at_fault = own is not None and (finding.verdict == "slow_link" or named == set(planted.ranks))
    return {
        "verdict": finding.verdict,
        "cause": finding.cause,
        "named": sorted(named),
        "right": finding.cause == planted.cause and (at_fault or not planted.ranks),
        "traced_ms": finding.what_if.step_ms,
        "promised_ms": finding.what_if.step_ms - finding.what_if.without_suspects_ms,
        "low_ms": own.lost_ms_low if own and planted.ranks else None,
        "high_ms": own.lost_ms_high if own and planted.ranks else None,
    }


if __name__ == "__main__":
    sys.exit(main())
