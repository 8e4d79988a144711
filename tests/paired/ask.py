"""Asks a checkout of the program about a folder, as a user does."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROGRAM: Final = "import sys; from tracekit_cli.tracekit import main; sys.exit(main())"
LONGEST_S: Final = 400
DIGITS: Final = 4  # of a figure behind the point: no golden changes by noise of the last digit

IN_PART: Final = ("no_whole_step", "no_step_marks")  # quality of answers with steps of their own numbers


@dataclass(frozen=True)
class Checkout:
    """A state of the code: the folder that holds the packages, and one that lets `tracekit_cli` be found in it."""

    root: Path
    path: Path

    def environment(self) -> dict[str, str]:
        """The environment in which Python imports the packages of this checkout and no other."""
        return {
            **os.environ,
            "PYTHONPATH": f"{self.path}{os.pathsep}{self.root}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def checkout(root: Path, scratch: Path) -> Checkout:
    """The code in `root`, with the name of its commands in `scratch`."""
    path = scratch / f"path-{abs(hash(root)):x}"
    path.mkdir(parents=True, exist_ok=True)
    link = path / "tracekit_cli"
    if not link.is_symlink():
        link.symlink_to(root / "cli", target_is_directory=True)
    return Checkout(root, path)


def ask(code: Checkout, traces: Path, mesh: str | None) -> dict[str, object]:
    """Return the answer of `tracekit slowrank TRACES` in short; a refusal or a crash is its `error`."""
    command = [
        sys.executable,
        "-P",  # else the folder from which this runs would come before the checkout
        "-c",
        PROGRAM,
        "slowrank",
        str(traces),
        "--json",
        "-",
        "--quiet",
        "--jobs",
        "1",
    ]
    command += ["--mesh", mesh] if mesh else []
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=LONGEST_S, check=False, env=code.environment()
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer in {LONGEST_S} s"}
    seconds = round(time.monotonic() - began, 1)
    try:
        return {**in_short(json.loads(done.stdout)), "seconds": seconds}
    except json.JSONDecodeError:
        lines = done.stderr.strip().splitlines()
        return {
            "error": f"exit {done.returncode}: {lines[-1][:200] if lines else 'no answer'}",
            "seconds": seconds,
        }


def in_short(answer: dict) -> dict[str, object]:
    """Verdict, cause, ranks, prices, candidates and compared steps of a `tracekit.slowrank/1` answer."""
    price = answer["what_if"]
    in_part = any(row["kind"] in IN_PART for row in answer.get("quality") or [])
    return {
        "verdict": answer["verdict"],
        "cause": answer["cause"],
        "suspects": [s["rank"] for s in answer["suspects"]],
        "candidates": [s["rank"] for s in answer.get("candidates") or []],
        "slowdown": round(price["slowdown"], DIGITS),
        "step_ms": round(price["step_ms"], DIGITS),
        "low_ms": [round(s["lost_ms_low"], DIGITS) for s in answer["suspects"]],
        "high_ms": [round(s["lost_ms_high"], DIGITS) for s in answer["suspects"]],
        "steps": [] if in_part else list((answer.get("steps") or {}).get("analysed", ())),
    }
