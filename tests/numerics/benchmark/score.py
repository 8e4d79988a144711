"""Scores an answer of `numerics compare` against the truth of a case."""

import re
from dataclasses import asdict, dataclass
from typing import Any

from tests.numerics.benchmark.case import Case

WRONG = frozenset({"bug", "precision_policy"})


@dataclass(frozen=True)
class Score:
    """None where the question does not arise (a benign change has no place); `misled` by an explanation that is given
    and does not name the mechanism."""

    verdict: str
    right: bool
    false_alarm: bool
    exact: bool | None
    module: bool | None
    axis: bool | None
    explained: bool | None
    misled: bool | None
    answer: str

    def to_json(self) -> dict[str, Any]:
        """As the result file holds it."""
        return asdict(self)


def score(case: Case, document: dict[str, Any]) -> Score:
    """Judge one answer."""
    verdict = str(document["verdict"])
    found = document.get("first_divergence") or {}
    tensor, module = str(found.get("tensor", "")), str(found.get("module", ""))
    label = str(found.get("collective") or "").partition("#")[2]
    text = " ".join(str(document.get(key) or "") for key in ("explanation", "reason"))
    text += " " + str(found.get("evidence", ""))
    place = f"{found.get('step')}/{found.get('phase')}/mb{found.get('microbatch')} {tensor}"
    answer = f"{place} [{found.get('collective')}] {found.get('axis')}: {document.get('explanation')}"
    where = case.where
    if where is None:
        return Score(
            verdict, verdict in case.verdicts, verdict in WRONG, None, None, None, None, None, answer
        )
    named = any(re.fullmatch(where.tensors, name) for name in (tensor, label) if name)
    exact = named and found.get("step") == where.step
    in_module = named or bool(re.fullmatch(where.module, module)) if found else False
    axis = str(found.get("axis") or "") in where.axes if where.axes else None
    explained = bool(re.search(where.explains, text, re.IGNORECASE)) if where.explains else None
    misled = bool(document.get("explanation")) and not explained if where.explains else None
    return Score(verdict, verdict in case.verdicts, False, exact, in_module, axis, explained, misled, answer)
