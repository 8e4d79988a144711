"""`python -m tests.outside`: real runs of four ranks on Gloo, one rank disturbed from outside, a row a run.

Each disturbed run lies between two of the same start without the disturbance: their steps give the price that the
answer's is compared with, and their answers must be healthy. `--keep FOLDER` keeps every run: the command called again
with that folder goes on where it was interrupted, and asks again about the runs that it finds there.
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
from tests.outside.disturb import DISTURBANCES, Disturbance, disturb
from tests.outside.job import TRACED, WARM_UP, Job, step_ms, write_data
from tests.ranks.pool import RankPool

MESH = "tp=2,dp=2"
HEAD = """| run | step ms | measured price | price | interval | verdict | cause | ranks | |
|---|---|---|---|---|---|---|---|---|"""


def main() -> int:
    """Run what is asked for, print the table; 0 also where answers are wrong, which the last line counts."""
    parser = argparse.ArgumentParser(prog="python -m tests.outside", description=__doc__)
    parser.add_argument("--only", help="parts of names of disturbances, joined by commas")
    parser.add_argument("--rounds", type=int, default=1, help="disturbed runs of each kind")
    parser.add_argument("--mesh", default=MESH, help=f"four ranks; {MESH}")
    parser.add_argument("--keep", type=Path, help="folder that keeps the runs and their rows")
    options = parser.parse_args()
    wanted = options.only.split(",") if options.only else [""]
    chosen = [d for d in DISTURBANCES if any(part in d.name for part in wanted)]
    with tempfile.TemporaryDirectory(prefix="outside-") as scratch:
        keep = (options.keep or Path(scratch)).resolve()
        keep.mkdir(parents=True, exist_ok=True)
        pool = RankPool()
        try:
            rows = [
                row
                for disturbance in chosen
                for row in compared(pool, keep, disturbance, options.mesh, options.rounds)
            ]
        finally:
            pool.close()
    print(summary(rows))
    return 0


def compared(
    pool: RankPool, keep: Path, disturbance: Disturbance, mesh: str, rounds: int
) -> list[dict[str, Any]]:
    """Run and judge healthy and disturbed runs in turn, beginning and ending with a healthy one; print a row each."""
    why = disturbance.unavailable()
    if why:
        print(f"| {disturbance.name} | skipped: {why} |", flush=True)
        return []
    print(f"\n{HEAD}", flush=True)
    healthy = Disturbance(f"none, beside {disturbance.name}", (), prepare=disturbance.baseline, ranks=())
    rows: list[dict[str, Any]] = []
    for number in range(2 * rounds + 1):
        which = disturbance if number % 2 else healthy
        rows.append(one_run(pool, keep, which, mesh, number))
        if number % 2 == 0:
            between = [row for row in rows[-3::2] if row]
            usual = [row["step_ms"] for row in between if "step_ms" in row]
            if number and usual and "step_ms" in rows[-2]:
                rows[-2]["measured_ms"] = rows[-2]["step_ms"] - sum(usual) / len(usual)
                rows[-2]["doubt_ms"] = max(usual) - min(usual)
            for row in rows[-2:] if number else rows[-1:]:
                print(line(row), flush=True)
    return rows


def one_run(pool: RankPool, keep: Path, disturbance: Disturbance, mesh: str, number: int) -> dict[str, Any]:
    """Return the row of one run, from the folder of an earlier call where it holds one."""
    name = disturbance.name.replace(" ", "_").replace(",", "").replace("%", "percent")
    folder = keep / f"{name}_{number}"
    done = folder / "row.json"
    if done.exists():
        return json.loads(done.read_text()) | asked(folder)
    shutil.rmtree(folder, ignore_errors=True)
    data = write_data(keep / "data")
    row: dict[str, Any] = {"name": disturbance.name, "causes": disturbance.causes, "ranks": disturbance.ranks}
    try:
        with disturbance.prepare(pool, folder, data.parent) as setting:
            train(Job(pool, folder, data, mesh, setting), disturbance)
        row |= {"step_ms": step_ms(folder), **asked(folder)}
    except (RuntimeError, AssertionError, OSError, tracekit.TracekitError) as error:
        return row | {"error": " ".join(str(error).split())[:200]}
    part = done.with_suffix(".part")
    part.write_text(json.dumps(row))
    part.replace(done)
    return row


def train(job: Job, disturbance: Disturbance) -> None:
    """Disturb the job from its first traced step to its last, and wait for its end."""
    try:
        if not job.wait_for(WARM_UP, 120):
            job.finish(5)
        with disturb(job, disturbance):
            job.wait_for(WARM_UP + TRACED, 240)
        job.finish()
    finally:
        job.kill()


def asked(folder: Path) -> dict[str, Any]:
    """Return what slowrank says of the traces of a run."""
    finding = tracekit.slowrank(tracekit.load([str(folder / "trace")]))
    named = finding.suspects
    return {
        "verdict": finding.verdict,
        "cause": finding.cause,
        "named": [suspect.rank for suspect in named],
        "mechanism": [m.name for suspect in named[:1] for m in suspect.mechanisms],
        "price_ms": finding.what_if.step_ms - finding.what_if.without_suspects_ms,
        "low_ms": max((s.lost_ms_low or 0.0 for s in named), default=0.0),
        "high_ms": max((s.lost_ms_high or s.lost_ms_per_step for s in named), default=0.0),
    }


def judged(row: dict[str, Any]) -> str:
    """Return what an answer is worth: right, cause wrong, missed, undecided, an innocent accused, healthy accused."""
    if "error" in row:
        return "failed"
    named, struck, quiet = set(row["named"]), set(row["ranks"]), row["verdict"] in {"healthy", "inconclusive"}
    if not struck:
        return "right" if quiet else "healthy accused"
    if quiet:
        return "missed" if row["verdict"] == "healthy" else "undecided"
    a_link = row["verdict"] == "slow_link" and "network" in row["causes"]  # names both of its ends
    if not named & struck or (named - struck and not a_link):
        return "innocent accused"
    return "right" if row["cause"] in row["causes"] else "cause wrong"


def line(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    if "error" in row:
        return f"| {row['name']} | failed: {row['error']} |"
    measured = f"{row['measured_ms']:+.0f} ms" if "measured_ms" in row else ""
    named = ", ".join(map(str, row["named"])) or "none"
    cause = " ".join([row["cause"] or "", *(f"({m})" for m in row["mechanism"][:1])])
    interval = f"{row['low_ms']:.0f} to {row['high_ms']:.0f}" if row["named"] else ""
    return (
        f"| {row['name']} | {row['step_ms']:.0f} | {measured} | {row['price_ms']:.0f} ms | {interval} "
        f"| {row['verdict']} | {cause} | {named} | {judged(row)} |"
    )


def summary(rows: Sequence[dict[str, Any]]) -> str:
    """Return two lines: the answers counted by their worth, and by whether their interval holds the measured price.

    A measured price is uncertain by what the two healthy runs beside it differ by.
    """
    worth = [judged(row) for row in rows]
    counts = [f"{worth.count(kind)} {kind}" for kind in sorted(set(worth), key=worth.index)]
    priced = [row for row in rows if row.get("named") and "measured_ms" in row]
    off = [
        max(row["low_ms"] - row["measured_ms"], row["measured_ms"] - row["high_ms"], 0.0) for row in priced
    ]
    near = sum(0 < miss <= row["doubt_ms"] for miss, row in zip(off, priced, strict=True))
    return (
        f"\n{len(rows)} runs: {', '.join(counts)}\n{len(priced)} measured prices: {off.count(0.0)} inside the "
        f"interval, {near} beside it by less than the healthy runs differ"
    )


if __name__ == "__main__":
    sys.exit(main())
