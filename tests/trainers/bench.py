"""Makes all runs of the chosen cases, asks all questions, and scores the answers."""

import functools
import itertools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.trainers.case import Case, Question
from tests.trainers.launch import Answer, ask, in_parallel, read_answer, record
from tests.trainers.score import Row, score

ORDER: tuple[Question, ...] = ("pair", "both", "model")


def run_bench(
    cases: Sequence[Case],
    jobs: int,
    keep: Path | None = None,
    say: Callable[[str], None] = lambda _line: None,
) -> list[Row]:
    """One row for each case and question; what lies in `keep` is not made again, and `say` gets a line a task."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = (keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        _record_all(cases, jobs, folder, say)
        _ask_all(cases, jobs, folder, say)
        return [
            score(case, question, _answer(folder, case, question), folder)
            for case in cases
            for question in case.asked
        ]


def _record_all(cases: Sequence[Case], jobs: int, folder: Path, say: Callable[[str], None]) -> None:
    runs = {run.name: run for case in cases for run in filter(None, (case.run, case.baseline))}
    missing = [run for run in runs.values() if not (folder / f"{run.name}.done").exists()]
    numbers = itertools.count(1)
    in_parallel(
        {run.name: functools.partial(record, run, folder) for run in missing},
        jobs,
        lambda name: say(f"run {next(numbers)}/{len(missing)}: {name}"),
    )


def _ask_all(cases: Sequence[Case], jobs: int, folder: Path, say: Callable[[str], None]) -> None:
    asked = {
        f"{case.name} {question}": (case, question)
        for question in ORDER
        for case in cases
        if question in case.asked
        and not _failed(folder, case)
        and not _place(folder, case, question).exists()
    }
    numbers = itertools.count(1)

    def finished(name: str) -> None:
        case, question = asked[name]
        row = score(case, question, _answer(folder, case, question), folder)
        say(
            f"answer {next(numbers)}/{len(asked)}: {name}: {row.verdict}: {row.judgement}, {row.seconds:.0f} s"
        )

    tasks = {
        name: functools.partial(ask, case.command(question, folder), _place(folder, case, question))
        for name, (case, question) in asked.items()
    }
    in_parallel(tasks, jobs, finished)


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
