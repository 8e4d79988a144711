"""Asks the programs, as a user does: a process that reads a folder and prints."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.reports.report import Answer, Report

PROGRAM = "import sys; from tracekit_cli.{} import main; sys.exit(main())"
LONGEST_S = 600


def ask(command: Sequence[str], folder: Path) -> Answer:
    """The answer of a command such as `tracekit hang {}`; `{}` is the folder, in which the answer's JSON is left."""
    program, *rest = [part.format(folder) for part in command]
    written = folder / "answer.json"
    call = [sys.executable, "-c", PROGRAM.format(program), *rest, "--quiet", "--json", str(written)]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "160"}
    done = subprocess.run(
        call, capture_output=True, text=True, timeout=LONGEST_S, check=False, env=environment
    )
    document = json.loads(written.read_text()) if written.exists() else {}
    return Answer((done.stdout + done.stderr).replace(f"{folder}/", ""), document, done.returncode)


def answered(report: Report, folder: Path) -> tuple[Answer, str]:
    """A report's answer, and the judgement of it; its input is made in the folder first."""
    report.make(folder)
    answer = ask(report.command, folder)
    return answer, report.judge(answer)
