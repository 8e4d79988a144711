"""Trains 500 steps on 8 ranks with and without ten deaths: `python -m tests.reftrain.ten_kills OUT`.

The deaths come from outside: once the job has made so many steps, one of its ranks gets SIGKILL. The program prints
how many ranks died, in which steps, and whether loss and gradient norm of every step agree in every bit on all ranks.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

WORLD, STEPS = 8, 500
DEATHS = tuple((23 + 51 * number, number * 3 % WORLD) for number in range(10))
"""Step that the job must have made, and the rank that dies then."""
MODEL = ("layers=2", "dim=32", "ffn_dim=64", "heads=2", "kv_heads=2")
TINY = [part for field in MODEL for part in ("--set", f"model.{field}")]
TINY += ["--set", "data.batch_size=8", "--set", "data.seq_len=16", "--quiet"]


def rows(out: Path, rank: int) -> list[tuple[int, float, float]]:
    """Step, loss and gradient norm of each whole row of a rank's metrics."""
    path = out / "metrics" / f"rank{rank}.jsonl"
    text = path.read_text() if path.exists() else ""
    found = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [(row["step"], row["loss"], row["grad_norm"]) for row in found]


def started(out: Path, steps: int, *more: str) -> subprocess.Popen[bytes]:
    """Start a job of `steps` steps that writes to `out`."""
    program = Path(sys.executable).with_name("reftrain")
    mesh = ["--mesh", "tp=2,dp=4", "--steps", str(steps), "--out", str(out)]
    return subprocess.Popen([program, "run", *mesh, *TINY, *more])


def killed(out: Path, steps: int, every: int, deaths: Sequence[tuple[int, int]]) -> int:
    """Train with `deaths`, and return the job's exit code; a death waits for the rank that another one has started."""
    elastic = ["--elastic", "--set", f"checkpoint.every={every}", "--set", "checkpoint.asynchronous=false"]
    job = started(out, steps, *elastic)
    children = Path(f"/proc/{job.pid}/task/{job.pid}/children")
    for made, rank in deaths:
        while job.poll() is None and len(rows(out, 0)) <= made:
            time.sleep(0.05)
        if job.poll() is None:
            os.kill(int(children.read_text().split()[rank]), signal.SIGKILL)
    return job.wait()


def unequal(out: Path, other: Path, steps: int) -> list[tuple[int, int]]:
    """Return the steps and ranks with metrics that differ in a bit, or that one job lacks."""
    sides = [[{row[0]: row for row in rows(side, rank)} for rank in range(WORLD)] for side in (out, other)]
    return [
        (step, rank)
        for step in range(steps)
        for rank in range(WORLD)
        if sides[0][rank].get(step) is None or sides[0][rank][step] != sides[1][rank].get(step)
    ]


def main(out: Path) -> int:
    """Train twice below `out`, print how both agree, and return 1 where they do not."""
    began = time.monotonic()
    code = started(out / "plain", STEPS).wait()
    plain = time.monotonic() - began
    began = time.monotonic()
    code = code or killed(out / "killed", STEPS, 10, DEATHS)
    attempts = json.loads((out / "killed" / "run.json").read_text())["attempts"]
    print(f"without deaths {plain:.0f} s, with {len(attempts)} deaths {time.monotonic() - began:.0f} s")
    print("died: " + ", ".join(f"rank {a['rank']} in step {a['step']}" for a in attempts))
    apart = unequal(out / "plain", out / "killed", STEPS)
    print(f"of {STEPS * WORLD} rows of metrics {len(apart)} differ: {apart[:5]}")
    return code or int(bool(apart) or len(attempts) != len(DEATHS))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
