"""The JSON Schemas that `reftrain schema` prints: real answers hold them, and wrong ones do not."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from jsonschema import Draft202012Validator
from tracekit_cli.reftrain import reftrain

from reftrain.documents import DOCUMENTS
from tests.marks import quick_nth

RECIPE = Path(__file__).with_name("recipe.toml")
SIMULATED = ("simulate", "--preset", "tiny", "--mesh", "dp=2,pp=2", "--micro-batches", "4", "--quiet")
ANSWERS = [
    ("schedule", "1f1b", "--stages", "4", "--micro-batches", "8"),
    ("schedule", "1f1b", "--stages", "3", "--micro-batches", "4", "--cost", "f=1/3,b=0.7,p2p=0.1"),
    ("schedule", "pipedream_2bw", "--stages", "4", "--micro-batches", "8", "--steps", "2"),
    ("schedule", "chimera", "--stages", "4", "--micro-batches", "8", "--zero", "2"),
    ("memory", "--preset", "small", "--mesh", "dp=2,pp=2"),
    ("memory", "--preset", "405b", "--mesh", "tp=8,pp=16,dp=128", "--kernels", "fused"),
    ("plan", "--preset", "8b", "--gpus", "8", "--tokens", "128K", "--seq", "8192", "--quiet"),
    ("plan", "--preset", "8b", "--gpus", "64", "--tokens", "1M", "--seq", "8192", "--prefer", "time", "--quiet"),
    ("plan", "--recipe", "{recipe}", "--gpus", "4", "--quiet"),
    ("server", "--steps", "3", "--staleness", "1"),
    ("faults",),
    ("calibrate", "--ranks", "2"),
    ("reproduce", "figure13"),
    ("goodput", "--gpus", "1024", "--days", "20", "--runs", "2"),
    ("infer", "--preset", "8b", "--devices", "8", "--prompt", "64"),
    SIMULATED,
    (*SIMULATED, "--fault", "slow_compute:rank=1,factor=1.5", "--fault", "long_stage", "--out", "{out}"),
    (*SIMULATED, "--fault", "host_stall:rank=1,axis=dp", "--out", "{out}"),
    (*SIMULATED, "--fault", "crash:rank=0,steps=0", "--out", "{out}"),
]  # fmt: skip


def printed(*words):
    done = CliRunner().invoke(reftrain, words, catch_exceptions=False, standalone_mode=False)
    return json.loads(done.stdout)


def schema_of(words):
    """The schema of an answer: that of its command, but for plans of recipes."""
    return "recipe_plan" if "--recipe" in words else words[0]


def closed(part):
    """A schema that also refuses every field that it does not name."""
    if isinstance(part, list):
        return [closed(p) for p in part]
    if not isinstance(part, dict):
        return part
    held = {key: closed(value) for key, value in part.items()}
    return {**held, "additionalProperties": False} if "properties" in part else held


@pytest.mark.parametrize("words", quick_nth(2, ANSWERS), ids=" ".join)
def test_reftrain_answers_hold_their_schema(words, tmp_path):
    name = schema_of(words)
    written = printed("schema", name)
    Draft202012Validator.check_schema(written)
    check = Draft202012Validator(written)
    answer = printed(*(w.format(out=tmp_path / "run", recipe=RECIPE) for w in words), "--json", "-")
    assert answer["schema"] == written["$id"] == f"reftrain.{name}/1"
    assert set(answer) == set(written["properties"])
    assert not [e.message for e in Draft202012Validator(closed(written)).iter_errors(answer)]
    assert not list(check.iter_errors({**answer, "added": 1}))  # fields may be added
    for field in answer:
        assert list(check.iter_errors({**answer, field: {"no": []}})), field
        assert list(check.iter_errors({k: v for k, v in answer.items() if k != field})), field


def test_answers_cover_every_schema():
    assert {schema_of(words) for words in ANSWERS} == set(DOCUMENTS)


def test_every_json_option_has_a_schema():
    commands = {name: reftrain.get_command(None, name) for name in reftrain.list_commands(None)}
    answering = {n for n, c in commands.items() if any("--json" in p.opts for p in c.params)}
    assert answering | {"recipe_plan"} == set(DOCUMENTS)
