"""The benchmark of trainers: its declarations, its judgements, and one trainer from start to end."""

import re
from pathlib import Path

import pytest

from tests.trainers.bench import run_bench
from tests.trainers.case import Case, run
from tests.trainers.cases import CASES
from tests.trainers.kinds import data_parallel
from tests.trainers.launch import Answer
from tests.trainers.score import judge

HEALTHY = Case("healthy", run(data_parallel.train, 3), data_parallel.build, never="order alone")
BROKEN = Case(
    "broken",
    run(data_parallel.train, 3),
    data_parallel.build,
    planted="something",
    where="words",
    reason="factor",
    word="learning rates",
)


def test_thirty_healthy_and_thirty_broken() -> None:
    names = [case.name for case in CASES]
    broken = [case for case in CASES if case.planted]
    assert len(set(names)) == len(names)
    assert len(broken) >= 30
    assert len(CASES) - len(broken) >= 30


def test_patterns_compile_and_blame_has_a_place() -> None:
    for case in CASES:
        for pattern in (case.where, case.reason, case.word, case.never):
            re.compile(pattern)
        assert bool(case.planted) == bool(case.where), case.name


@pytest.mark.parametrize(
    ("case", "verdict", "code", "text", "judgement"),
    [
        (HEALTHY, "drift", 0, "", "right"),
        (HEALTHY, "undecided", 4, "", "open"),
        (HEALTHY, "bug", 1, "", "false alarm"),
        (HEALTHY, "drift", 0, "order alone", "untrue claim"),
        (HEALTHY, "-", 70, "", "crash"),
        (BROKEN, "bug", 1, "words.weight", "right"),
        (BROKEN, "bug", 1, "head.weight", "misplaced"),
        (BROKEN, "undecided", 4, "one factor", "right"),
        (BROKEN, "undecided", 4, "", "open"),
        (BROKEN, "identical", 0, "", "false all-clear"),
        (BROKEN, "drift", 0, "not checked: learning rates", "false all-clear"),
        (BROKEN, "identical", 0, "not checked: learning rates", "open"),
        (BROKEN, "-", 2, "", "crash"),
    ],
)
def test_judges_by_verdict_and_words(case: Case, verdict: str, code: int, text: str, judgement: str) -> None:
    assert judge(case, verdict, Answer(code, text, "", {"verdict": verdict}, 0.0)) == judgement


@pytest.mark.slow
def test_a_trainer_runs_and_is_asked(tmp_path: Path) -> None:
    (case,) = (case for case in CASES if case.name == "ddp_again")
    rows = run_bench([case], 2, tmp_path)
    assert [row.verdict for row in rows] == ["identical", "identical"]
