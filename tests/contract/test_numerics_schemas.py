"""The JSON Schemas that `numerics schema` prints: real answers hold them, and wrong ones do not."""

import dataclasses
import json

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from tracekit_cli.numerics_commands.schema import schema

from numerics.bisection.search import bisect
from numerics.order.order_plan import write_plan
from numerics.order.plan_finding import plan_finding
from numerics.precision.advise import advise
from numerics.precision.ladder import ladder
from numerics.report.advise import advice_document
from numerics.report.bisect import bisect_document
from numerics.report.documents import DOCUMENTS
from numerics.report.json import compare_document, dumps
from numerics.report.ladder import ladder_document
from numerics.report.plan import plan_document
from reftrain.config.file import load
from reftrain.replay.declared_plan import declared_plan
from tests.numerics.synthetic import Plan
from tests.numerics.test_advise import write as write_shadow
from tests.numerics.test_bisect import recorded
from tests.numerics.test_compare import PAR, judge
from tests.numerics.test_ladder import one_percent_in_second, pairs


def plans(folder):
    """Two runs whose sums have other orders; the first has a capture."""
    for name, mesh in (("a", {"tp": 2, "dp": 2}), ("b", {"tp": 1, "dp": 2})):
        judge(folder / name, Plan(), Plan())
        write_plan(folder / name / "a", declared_plan(load(None, {"mesh": mesh}), None))
    return plan_finding(folder / "a" / "a", folder / "b" / "a")


ANSWERS = {
    "compare": lambda folder, _: compare_document(
        judge(folder, dataclasses.replace(PAR, order=1e-6), Plan(), PAR)
    ),
    "plan": lambda folder, _: plan_document(plans(folder)),
    "ladder": lambda folder, _: ladder_document(ladder(pairs(folder, one_percent_in_second))),
    "advise": lambda folder, _: advice_document(advise(write_shadow(folder))),
    "bisect": lambda folder, patch: bisect_document(bisect(4, recorded(folder, 2, 4, patch)[0])),
}


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_numerics_answers_hold_their_schema(name, tmp_path, monkeypatch):
    written = json.loads(CliRunner().invoke(schema, [name], standalone_mode=False).stdout)
    Draft202012Validator.check_schema(written)
    check = Draft202012Validator(written)
    answer = json.loads(dumps(ANSWERS[name](tmp_path, monkeypatch)))
    assert answer["schema"] == written["$id"] == f"numerics.{name}/1"
    assert set(answer) == set(written["properties"])
    assert not [e.message for e in check.iter_errors(answer)]
    assert not list(check.iter_errors({**answer, "added": 1}))  # fields may be added
    for field in answer:
        assert list(check.iter_errors({**answer, field: {"no": []}})), field
        assert list(check.iter_errors({k: v for k, v in answer.items() if k != field})), field
