"""Asks tracekit, as a user does: a program that reads a folder."""

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.shapes.score import Outcome

PROGRAM = "import sys; from tracekit_cli.tracekit import main; sys.exit(main())"
LONGEST_S = 240
REFUSED = 3
"""The exit code of an input that is refused."""


def ask(folder: Path, outcome: Outcome) -> None:
    """Fill in what `tracekit slowrank FOLDER --json -` answers."""
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        "slowrank",
        str(folder),
        "--json",
        "-",
        "--quiet",
        "--jobs",
        "1",
    ]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        outcome.error = f"no answer in {LONGEST_S} s"
    else:
        outcome.refused = done.returncode == REFUSED
        read(done.stdout, done.stderr, outcome)
    outcome.seconds = round(time.monotonic() - began, 1)


def read(text: str, errors: str, outcome: Outcome) -> None:
    """Take the answer apart."""
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        outcome.error = errors.strip().splitlines()[-1][:300] if errors.strip() else "no answer"
        return
    outcome.verdict, outcome.cause = answer["verdict"], answer["cause"]
    outcome.suspects = tuple(suspect["rank"] for suspect in answer["suspects"])
    outcome.candidates = tuple(suspect["rank"] for suspect in answer.get("candidates") or [])
    price = (answer.get("what_if") or {}).get("slowdown")
    outcome.priced = None if price is None else price - 1
