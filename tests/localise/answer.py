"""Asks tracekit, as a user does."""

import json
import subprocess
import sys
import time
from pathlib import Path

from tests.localise.case import Case, repriced
from tests.localise.score import CAUSES, Outcome, judge

PROGRAM = "import sys; from tracekit_cli.tracekit import main; sys.exit(main())"
LONGEST_S = 240


def ask(case: Case, folder: Path, outcome: Outcome) -> None:
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
    if case.told:
        command += ["--mesh", outcome.mesh]
    began = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    except subprocess.TimeoutExpired:
        outcome.error = "timeout"
    else:
        read(done.stdout, done.stderr, outcome)
    outcome.seconds = round(time.monotonic() - began, 1)
    outcome.result = judge(outcome, case)
    if outcome.result == "right" and outcome.culprits and outcome.suspects:
        outcome.cause_right = outcome.cause in CAUSES[outcome.fault]
        same = set(outcome.suspects) == set(outcome.culprits)
        outcome.priced_truth = outcome.slowdown if same else round(repriced(case, set(outcome.suspects)), 4)


def read(text: str, errors: str, outcome: Outcome) -> None:
    """Take the answer apart."""
    try:
        answer = json.loads(text)
    except json.JSONDecodeError:
        outcome.error = errors.strip().splitlines()[-1][:300] if errors.strip() else "no answer"
        return
    outcome.verdict, outcome.cause = answer["verdict"], answer["cause"]
    outcome.suspects = tuple(suspect["rank"] for suspect in answer["suspects"])
    outcome.candidates = tuple(suspect["rank"] for suspect in answer.get("candidates", []))
    outcome.priced = answer["what_if"]["slowdown"]
