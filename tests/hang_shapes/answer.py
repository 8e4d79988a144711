"""Asks tracekit, as a user does: a program that reads a folder."""

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.hang_shapes.score import Outcome

PROGRAM = "import sys; from tracekit_cli.tracekit import main; sys.exit(main())"
LONGEST_S = 240


def ask(folder: Path, outcome: Outcome) -> None:
    """Fill in what `tracekit hang FOLDER --json -` answers."""
    command = [sys.executable, "-c", PROGRAM, "hang", str(folder), "--json", "-", "--quiet", "--jobs", "1"]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        outcome.error = f"no answer in {LONGEST_S} s"
    else:
        read(done.stdout, done.stderr, outcome)
    outcome.seconds = round(time.monotonic() - began, 1)


def read(text: str, errors: str, outcome: Outcome) -> None:
    """Take the answer apart."""
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        outcome.error = errors.strip().splitlines()[-1][:300] if errors.strip() else "no answer"
        return
    outcome.verdict, outcome.reason = answer["verdict"], answer["reason"]
    outcome.named = tuple(culprit["rank"] for culprit in answer["culprits"])
    outcome.candidates = tuple(answer.get("candidates", ()))
    outcome.named_kinds = tuple(culprit["kind"] for culprit in answer["culprits"])
