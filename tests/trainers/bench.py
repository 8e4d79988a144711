"""Makes all runs of the chosen cases, asks all questions, and scores the answers."""

import functools
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.trainers.case import Case, Question, Run
from tests.trainers.launch import Answer, ask, in_parallel, read_answer, record
from tests.trainers.score import Row, score

ORDER: tuple[Question, ...] = ("pair", "both", "model")


def run_bench(cases: Sequence[Case], jobs: int, keep: Path | None = None) -> list[Row]:
    """One row for each case and question; what lies in `keep` is not made again."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        return _run_in(cases, jobs, folder)


def _run_in(cases: Sequence[Case], jobs: int, folder: Path) -> list[Row]:
    runs: dict[str, Run] = {}
    for case in cases:
        for run in filter(None, (case.run, case.baseline)):
            runs[run.name] = run
    missing = [run for run in runs.values() if not (folder / f"{run.name}.done").exists()]
    in_parallel([functools.partial(record, run, folder) for run in missing], jobs)
    asked = [(case, question) for case in cases for question in case.asked]
    tasks = [
        functools.partial(ask, case.command(question, folder), _place(folder, case, question))
        for case, question in sorted(asked, key=lambda pair: ORDER.index(pair[1]))
        if not _failed(folder, case) and not _place(folder, case, question).exists()
    ]
    in_parallel(tasks, jobs)
    return [score(case, question, _answer(folder, case, question), folder) for case, question in asked]


def _place(folder: Path, case: Case, question: Question) -> Path:
    return folder / f"answer_{case.name}_{question}.json"


def _failed(folder: Path, case: Case) -> str:
    for run in filter(None, (case.run, case.baseline)):
        path = folder / f"{run.name}.failed"
        if path.exists():
            return path.read_text()
    return ""


def _answer(folder: Path, case: Case, question: Question) -> Answer:
    failed = _failed(folder, case)
    if failed:
        last = failed.strip().splitlines()[-1]
        return Answer(-1, f"the trainer failed: {last}", failed, None, 0.0)
    return read_answer(_place(folder, case, question))
