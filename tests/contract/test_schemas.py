"""The JSON Schemas that `tracekit schema` prints: real answers hold them, and wrong ones do not."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from tracekit_cli.tracekit_commands.schema import schema

import tracekit
from tracekit.analysis.triage.triage import triage
from tracekit.report.breakdown_json import breakdown_document
from tracekit.report.diff import diff_document
from tracekit.report.floor import floor_document
from tracekit.report.hang import hang_document
from tracekit.report.mesh import mesh_document_of
from tracekit.report.schemas import DOCUMENTS, json_schema
from tracekit.report.slowrank_json import dumps, slowrank_document
from tracekit.report.trend_json import trend_document
from tracekit.report.triage import triage_document
from tracekit.report.whatif_text import whatif_document

ANSWERS = {
    "slowrank": lambda run: slowrank_document(tracekit.slowrank(run, explain=True)),
    "whatif": lambda run: whatif_document(tracekit.whatif(run, ["rank=5"])),
    "breakdown": lambda run: breakdown_document(tracekit.breakdown(run)),
    "floor": lambda run: floor_document(tracekit.floor(run)),
    "diff": lambda run: diff_document(tracekit.diff(run, run)),
    "trend": lambda run: trend_document(tracekit.trend(run)),
    "mesh": lambda run: mesh_document_of(tracekit.places(run)),
    "hang": lambda _: hang_document(tracekit.hang(tracekit.load_dumps("sample_traces/hang_host_stall"))),
    "triage": lambda _: triage_document(triage("sample_traces/hang_host_stall")),
}


def printed(name):
    result = CliRunner().invoke(schema, [name], standalone_mode=False)
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_answers_hold_their_schema(ingested, name):
    written = printed(name)
    Draft202012Validator.check_schema(written)
    check = Draft202012Validator(written)
    answer = json.loads(dumps(ANSWERS[name](tracekit.load(ingested("demo_slow_tp")))))
    assert answer["schema"] == written["$id"] == f"tracekit.{name}/1"
    assert set(answer) == set(written["properties"])
    assert not [e.message for e in check.iter_errors(answer)]
    assert not list(check.iter_errors({**answer, "added": 1}))  # fields may be added
    for field in answer:
        wrong = {**answer, field: {"no": "such"}} if field != "coords" else {**answer, field: 7}
        assert list(check.iter_errors(wrong)), field
        if field in written["required"]:
            assert list(check.iter_errors({k: v for k, v in answer.items() if k != field})), field


def test_schemas_are_the_same_each_time():
    assert dumps(json_schema("hang")) == dumps(json_schema("hang"))


def test_the_package_runs_as_a_module():
    command = [sys.executable, "-m", "tracekit", "schema", "mesh"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(done.stdout) == json_schema("mesh")
