"""`tracekit.whatif/1`: names, types and order of every field, and the relations between them."""

import json

import pytest

import tracekit
from tracekit.report.slowrank_json import dumps
from tracekit.report.whatif_text import whatif_document

TOP = {
    "schema": str, "ranks": dict, "mesh": dict, "steps": dict, "step_ms": float, "residual_ms": float,
    "answers": list, "together": dict | None, "coverage": dict, "quality": list, "notes": list,
}  # fmt: skip
ANSWER = {
    "question": str, "meaning": str, "ranks": list, "without_ms": float, "without_ms_low": float,
    "without_ms_high": float, "slowdown": float, "lost_ms": float, "lost_ms_low": float, "lost_ms_high": float,
    "share": float | None, "proven": bool,
}  # fmt: skip
STANDARD = ["everybody", "worst_ranks", "axis=dp", "axis=pp", "axis=tp", "stage=0", "stage=1"]


@pytest.fixture(scope="module", params=[(), ("rank=5", "axis=tp,stage=1")], ids=["standard", "fixes"])
def told(request, ingested):
    """(fixes, JSON document) of the standard questions and of three fixes."""
    finding = tracekit.whatif(tracekit.load(ingested("demo_slow_tp")), request.param)
    return request.param, json.loads(dumps(whatif_document(finding)))


def typed(document, fields):
    """The fields of the contract, in its order, of its types (an integer will do for a float), and no more."""
    assert list(document) == list(fields)
    for name, kind in fields.items():
        allowed = {float: int | float, float | None: int | float | None}.get(kind, kind)
        assert isinstance(document[name], allowed), (name, document[name])


def test_the_top_level_has_every_field(told):
    fixes, document = told
    typed(document, TOP)
    assert document["schema"] == "tracekit.whatif/1"
    assert (document["together"] is None) == (not fixes)
    assert document["residual_ms"] >= 0


def test_parts_are_those_of_slowrank(told):
    _, document = told
    typed(document["ranks"], {"expected": int, "read": int, "missing": list, "rejected": list})
    typed(document["mesh"], {"order": list, "sizes": dict, "source": str})
    typed(document["steps"], {"analysed": list, "median_ms": float})
    typed(document["coverage"], {"matched": float | None, "by_axis": dict})


def test_questions_are_the_fixes_or_the_standard_ones(told):
    fixes, document = told
    expected = ",".join(fixes).split(",") if fixes else STANDARD
    assert [a["question"] for a in document["answers"]] == expected


def test_answers_are_whole_and_agree_with_themselves(told):
    _, document = told
    for answer in [*document["answers"], *([document["together"]] if document["together"] else [])]:
        typed(answer, ANSWER)
        step = document["step_ms"]
        assert answer["without_ms_high"] >= answer["without_ms"] >= answer["without_ms_low"] > 0
        assert answer["lost_ms_low"] <= answer["lost_ms"] <= answer["lost_ms_high"] < step
        for mine, other in (("low", "high"), ("high", "low")):
            assert answer[f"lost_ms_{mine}"] == pytest.approx(step - answer[f"without_ms_{other}"], abs=1e-3)
        assert answer["lost_ms"] == pytest.approx(step - answer["without_ms"], abs=1e-3)
        assert answer["slowdown"] == pytest.approx(step / answer["without_ms"], abs=1e-3)
        beyond = max(answer["lost_ms_low"], -answer["lost_ms_high"])
        assert answer["proven"] == (beyond > document["residual_ms"])
        assert answer["ranks"] == sorted(answer["ranks"])


def test_all_together_come_last_of_the_names(told):
    fixes, document = told
    if fixes:
        assert document["together"]["question"] == "together"
        assert document["together"]["lost_ms"] >= max(a["lost_ms"] for a in document["answers"]) - 1
    else:
        (everybody, worst, *_) = document["answers"]
        assert (everybody["share"], everybody["ranks"]) == (1, [])
        assert worst["ranks"] == [5]
