"""Judges an answer about a case: right, open, misplaced, false alarm, false all-clear, untrue claim or crash."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.trainers.case import BLAME, CLEAR, Case, Question
from tests.trainers.launch import Answer

Judgement = Literal["right", "open", "misplaced", "false alarm", "false all-clear", "untrue claim", "crash"]
JUDGEMENTS: tuple[Judgement, ...] = (
    "right",
    "open",
    "misplaced",
    "false alarm",
    "false all-clear",
    "untrue claim",
    "crash",
)
ANSWERED = (0, 1, 3, 4)


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    case: str
    question: Question
    planted: str
    verdict: str
    code: int
    first_line: str
    judgement: Judgement
    seconds: float


def score(case: Case, question: Question, answer: Answer, folder: Path) -> Row:
    """The row of the table for one answer, without the path of the runs' folder."""
    verdict = str(answer.finding.get("verdict")) if answer.finding else "-"
    lines = (answer.text.strip() or answer.error.strip()).splitlines() or [""]
    first = lines[0].replace(f"{folder}/", "")
    judgement = judge(case, verdict, answer)
    return Row(case.name, question, case.planted, verdict, answer.code, first, judgement, answer.seconds)


def judge(case: Case, verdict: str, answer: Answer) -> Judgement:
    """The judgement by the rules in docs/trainers_benchmark.md."""
    if answer.code not in ANSWERED or "Traceback" in answer.error:
        return "crash"
    if case.never and _says(case.never, answer.text):
        return "false all-clear" if case.planted and verdict in CLEAR else "untrue claim"
    if verdict in case.also:
        return "right"
    return judge_broken(case, verdict, answer) if case.planted else judge_healthy(verdict)


def judge_healthy(verdict: str) -> Judgement:
    """A healthy trainer must not be blamed."""
    if verdict in BLAME:
        return "false alarm"
    return "right" if verdict in CLEAR else "open"


def judge_broken(case: Case, verdict: str, answer: Answer) -> Judgement:
    """A broken trainer must be blamed at a sensible place, or left open with a reason."""
    if verdict in BLAME:
        return "right" if _says(case.where, _head(answer)) else "misplaced"
    if verdict == "drift":
        return "false all-clear"  # it says that nothing but the order of sums differs
    if verdict in CLEAR:
        return "open" if case.word and _says(case.word, answer.text) else "false all-clear"
    return "right" if case.reason and _says(case.reason, _head(answer)) else "open"


def _head(answer: Answer) -> str:
    """The verdict, the first divergence, evidence and explanation: what stands before the counts of tensors."""
    return answer.text.split("\ntensors:", 1)[0]


def _says(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE) is not None
