"""`reftrain faults`, and bugs as users write them."""

import json

import pytest
from click.testing import CliRunner
from tracekit_cli.reftrain_commands.faults import faults

from reftrain.config.fault_kinds import FAULT_KINDS
from reftrain.config.file import load
from reftrain.errors import ConfigError
from reftrain.faults.bugs import catalogue, is_bug, read_bugs
from reftrain.faults.registry import read_faults


def configuration(*texts, **mesh):
    return load(None, {"mesh": mesh, "evidence": {"faults": list(texts)}, "data": {"batch_size": 12}})


def test_the_list_names_every_kind_and_bug():
    result = CliRunner().invoke(faults, [])
    assert result.exit_code == 0
    for name, bug in catalogue().items():
        assert f"{name} [{bug.axis}]: {bug.what}; shows first: {bug.shows}" in result.output
    assert all(f"\n{kind}: " in f"\n{result.output}" for kind in FAULT_KINDS)


def test_the_list_as_json(tmp_path):
    path = tmp_path / "faults.json"
    assert CliRunner().invoke(faults, ["--json", str(path)]).exit_code == 0
    document = json.loads(path.read_text())
    assert document["schema"] == "reftrain.faults/1"
    by_name = {row["name"]: row for row in document["faults"]}
    assert by_name["P52"]["magnitudes"] == [{"factor": 2.0}, {"factor": 1.01}]
    assert by_name["P38"]["fields"]["mode"]["choices"] == ["times", "divide"]


def test_bugs_and_other_faults_go_their_own_ways():
    config = configuration("P02:layer=1,of=w2", "slow_compute:rank=0", tp=2)
    assert [spec.to_json()["of"] for spec in read_bugs(config)] == ["w2"]
    assert [spec.kind for spec in read_faults(config)] == ["slow_compute"]
    assert is_bug("P02:layer=1")
    assert not is_bug("slow_compute:rank=0")


@pytest.mark.parametrize(
    ("text", "mesh", "said"),
    [
        ("P99", {"tp": 2}, "no bug 'P99'"),
        ("P02:layer=9", {"tp": 2}, "layer 9 does not exist among 4"),
        ("P02:layer=x", {"tp": 2}, "not a whole number"),
        ("P02:layer=-1", {"tp": 2}, "out of bounds"),
        ("P02:rank=1", {"tp": 2}, "has no such field"),
        ("P02:of=w9", {"tp": 2}, "choose among wo, w2"),
        ("P02", {"dp": 2}, "tp is 1"),
        ("P03", {"tp": 2}, "model.bias = true"),
        ("P06", {"tp": 2}, "pad_vocab = true"),
        ("P17", {"tp": 2, "sequence_parallel": False}, "sequence_parallel = true"),
        ("P28", {"cp": 2}, "cp_method = ring"),
        ("P32", {"pp": 2}, "numerics.recompute"),
        ("P34", {"pp": 2}, "virtual_stages"),
        ("P44", {"dp": 2, "zero": 0}, "nothing is sharded"),
        ("P52:factor=nan", {"tp": 2}, "out of bounds"),
        ("P56", {}, "parallel path"),
    ],
)
def test_what_cannot_be_planted_is_refused_with_the_reason(text, mesh, said):
    with pytest.raises(ConfigError, match=said):
        read_bugs(configuration(text, **mesh))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("P01", "no backward reaches it"),
        ("P37:layer=3", "layer 3 is frozen and has no gradients"),
        ("P17", "model.frozen = false"),
    ],
)
def test_what_frozen_layers_hide_is_refused(text, said):
    mesh = {"tp": 2, "dp": 2}
    with pytest.raises(ConfigError, match=said):
        read_bugs(
            load(None, {"model": {"preset": "tiny_vision"}, "mesh": mesh, "evidence": {"faults": [text]}})
        )
