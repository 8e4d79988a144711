"""`reftrain memory`, `plan` and `calibrate` as users call them."""

import json
import tomllib

import pytest
from click.testing import CliRunner
from tracekit_cli.exit_codes import of_error
from tracekit_cli.reftrain import reftrain
from tracekit_cli.reftrain_commands.plan import parse_count

from reftrain.errors import ConfigError

PLAN = ["plan", "--preset", "8b", "--gpus", "8", "--tokens", "128K", "--seq", "8192"]


def call(*arguments):
    return CliRunner().invoke(reftrain, arguments, catch_exceptions=True)


def test_plan_as_json():
    got = call(*PLAN, "--json", "-")
    assert got.exit_code == 0
    document = json.loads(got.stdout)
    assert document["schema"] == "reftrain.plan/1"
    assert document["sequences"] == 16
    assert len(document["choices"]) + len(document["rejected"]) == 20
    assert document["choices"][0]["memory_gib"] < 76


def test_plan_as_text_and_picture(tmp_path):
    svg, saved = tmp_path / "plan.svg", tmp_path / "plan.json"
    got = call(*PLAN, "--svg", str(svg), "--json", str(saved), "--hardware", "a100")
    assert got.exit_code == 0
    assert got.stdout.lstrip().startswith("mesh")
    assert svg.read_text().startswith("<svg ")
    assert json.loads(saved.read_text())["hardware"] == "a100"


@pytest.mark.slow
def test_documents_change_the_plan():
    plain = json.loads(call(*PLAN, "--json", "-").stdout)["choices"][0]["step_s"]
    short = json.loads(call(*PLAN, "--json", "-", "--mean-document", "256").stdout)["choices"][0]["step_s"]
    assert short < plain


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("128K", "many"), "--tokens"),
        (("128K", "100K"), "whole number of sequences"),
        (("8b", "9b"), "405b"),
        (("8192", "0"), "--seq"),
    ],
)
def test_plan_refuses_what_it_cannot_read(change, says):
    got = call(*[change[1] if word == change[0] else word for word in PLAN])
    assert isinstance(got.exception, ConfigError)
    assert says in str(got.exception)
    assert of_error(got.exception) == 2


def test_plan_refuses_unknown_hardware():
    got = call(*PLAN, "--hardware", "abacus")
    assert "h100" in str(got.exception)


def test_memory_as_json_and_text():
    arguments = ["memory", "--preset", "small", "--mesh", "dp=2,pp=2"]
    document = json.loads(call(*arguments, "--json", "-").stdout)
    assert (document["schema"], document["unit"]) == ("reftrain.memory/1", "bytes")
    assert len(document["ranks"]) == 2
    for rank in document["ranks"]:
        assert {"weights", "gradients", "optimizer", "activations", "buffers", "peak"} <= set(rank)
    lines = call(*arguments).stdout.splitlines()
    assert lines[0].startswith("MiB")
    assert len(lines) == 4


def test_memory_of_a_published_job():
    wide = ["--set", "pipeline.virtual_stages=8", "--set", "pipeline.balanced=true", "--kernels", "fused"]
    got = call("memory", "--preset", "405b", "--mesh", "tp=8,cp=1,pp=16,dp=128", *wide, "--json", "-")
    ranks = json.loads(got.stdout)["ranks"]
    assert len(ranks) == 16
    assert ranks[0]["peak"] < ranks[1]["peak"] < 76 << 30  # balanced: the first rank has a layer less


def test_memory_refuses_a_mesh_that_cannot_be():
    got = call("memory", "--preset", "small", "--mesh", "tp=3")
    assert "mesh.tp" in str(got.exception)


@pytest.mark.slow
def test_calibrate_writes_a_file_that_plan_reads(tmp_path):
    out = tmp_path / "mine.toml"
    got = call("calibrate", "--ranks", "2", "--out", str(out), "--json", "-")
    assert got.exit_code == 0
    assert tomllib.loads(out.read_text())["node_size"] == 2
    document = json.loads(got.stdout)
    assert document["schema"] == "reftrain.calibrate/1"
    assert document["toml"] == out.read_text()
    tiny = ["plan", "--preset", "tiny", "--gpus", "2", "--tokens", "512", "--seq", "64"]
    assert call(*tiny, "--hardware", str(out)).exit_code == 0


@pytest.mark.parametrize(("text", "count"), [("7", 7), ("8K", 8192), ("16M", 1 << 24), ("1g", 1 << 30)])
def test_counts(text, count):
    assert parse_count("--seq", text) == count


@pytest.mark.parametrize("text", ["", "K", "-1", "1.5K", "8Q", "0", "9" * 30])
def test_bad_counts(text):
    with pytest.raises(ConfigError, match="--seq"):
        parse_count("--seq", text)
