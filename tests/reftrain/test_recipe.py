"""Recipes: stages on other meshes, lengths, batches and mixes, one learning rate, the weights averaged at the end."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from tracekit_cli.reftrain import reftrain

from reftrain.config.file import load
from reftrain.config.recipe import load_recipe
from reftrain.config.run import OptimizerConfig
from reftrain.data.batches import Loader
from reftrain.data.sequences import MixedSource, make_source
from reftrain.errors import ConfigError
from reftrain.job.recipe import run_recipe
from reftrain.replay.optimizer import learning_rate as replayed_rate
from reftrain.train.average import averaged, read_whole
from reftrain.train.checkpoint import finished
from reftrain.train.optimizer import learning_rate

SHARED = """
[model]
layers = 2
dim = 32
ffn_dim = 32
[numerics]
policy = "fp64"
[data]
source = "text"
files = ["{one}", "{other}"]
mix = [0.9, 0.1]
seq_len = 32
batch_size = 6
[checkpoint]
every = 1
[recipe]
average = 3
"""
STAGES = """
[[stage]]
name = "short"
steps = 4
{first}
[[stage]]
name = "ramp"
steps = 2
{first}
[stage.data]
batch_size = 12
[[stage]]
name = "anneal"
steps = 3
anneal = true
{last}
[stage.data]
seq_len = 96
mix = [0.2, 0.8]
"""
MESHES = {"first": "[stage.mesh]\ndp = 3", "last": "[stage.mesh]\ntp = 2\ncp = 2"}
ALONE = {"first": "[stage.mesh]\ndp = 1", "last": "[stage.mesh]\ndp = 1"}


def written(folder, meshes=MESHES, shared="", stages=STAGES):
    for name, text in (("one", "the first source says this again and again. "), ("other", "0123456789 ")):
        (folder / name).write_text(text * 90)
    path = folder / "recipe.toml"
    tables = SHARED.format(one=folder / "one", other=folder / "other") + shared
    path.write_text(tables + stages.format(**meshes))
    return path


def trained(folder, out, meshes=MESHES, only="", **checkpoint):
    recipe = load_recipe(written(folder, meshes), {"run": {"out": str(out)}, "checkpoint": checkpoint})
    run_recipe(recipe, lambda _: [], lambda _: None, only)
    return losses(out)


def losses(out):
    """The losses of all steps of all stages so far."""
    texts = [path.read_text() for path in sorted(out.glob("*/metrics/rank0.jsonl"))]
    return [json.loads(row)["loss"] for text in texts for row in text.splitlines()]


def test_stages_follow_one_another_in_steps_and_tokens(tmp_path):
    stages = load_recipe(written(tmp_path), {}).stages
    assert [(s.first, s.config.steps) for s in stages] == [(0, 4), (4, 6), (6, 9)]
    read = 0
    for stage in stages:
        data = stage.config.data
        begin = Loader(data, 260, 1, 0).numbers(stage.first)[0].start
        assert begin * data.seq_len == read
        read += stage.steps * stage.tokens


def test_the_rate_follows_one_cosine_and_anneals(tmp_path):
    stages = load_recipe(written(tmp_path), {}).stages
    rates = [
        learning_rate(s.config.optimizer, step, s.config.steps)
        for s in stages
        for step in range(s.first, s.config.steps)
    ]
    whole = [learning_rate(OptimizerConfig(decay_steps=6), step, 6) for step in range(7)]
    assert rates[:7] == whole
    assert rates[6:] == pytest.approx([whole[6], whole[6] * 2 / 3, whole[6] / 3])
    config = OptimizerConfig(anneal_from=5, anneal_steps=4)
    assert [replayed_rate(config, s, 9) for s in range(12)] == [
        learning_rate(config, s, 9) for s in range(12)
    ]


def test_shares_draw_sources_and_keep_places(tmp_path):
    data = load_recipe(written(tmp_path), {}).stages[0].config.data
    source = make_source(data, 260)
    assert isinstance(source, MixedSource)
    drawn = [source.chosen(n) for n in range(2000)]
    assert 0.08 < np.mean(drawn) < 0.12
    alone = [
        make_source(load(None, {"data": {"source": "text", "files": [f], "seq_len": 32}}).data, 260)
        for f in data.files
    ]
    for number in range(20):
        assert np.array_equal(source.sequence(number), alone[drawn[number]].sequence(number))


REFUSED = [
    ("", "", "lists no stages"),
    ("", "[[stage]]\nname='a/b'\nsteps=1", "no name of a folder"),
    ("", "[[stage]]\nsteps=0", "is not a count"),
    ("", "[[stage]]\nsteps=1\n[stage.modle]\ndim=3", "is not a table"),
    ("", "[[stage]]\nsteps=1\n[[stage]]\nsteps=1\n[stage.model]\ndim=64", "cannot differ by stage"),
    ("", "[[stage]]\nname='a'\nsteps=1\n[[stage]]\nname='a'\nsteps=1", "two stages have one name"),
    ("", "[[stage]]\nsteps=1\n[[stage]]\nsteps=1\n[stage.data]\nseq_len=80", "no whole number of sequences"),
    ("", "[[stage]]\nsteps=true", "is not a count"),
    ("other = 3\n", "[[stage]]\nsteps=1", "holds an unknown field"),
    ("", "[[stage]]\nsteps=1\nmesh=3", "outside a table"),
    ("", "stage = 3", "lists no stages"),
]


@pytest.mark.parametrize(("shared", "stages", "said"), REFUSED)
def test_what_is_no_recipe_is_refused(tmp_path, shared, stages, said):
    with pytest.raises(ConfigError, match=said):
        load_recipe(written(tmp_path, shared=shared, stages=stages), {})


@pytest.mark.slow
def test_a_recipe_equals_one_process_and_goes_on(tmp_path):
    """On its meshes as in one process; stopped after a stage and started again, in the same bits."""
    losses = trained(tmp_path, tmp_path / "a")
    alone = trained(tmp_path, tmp_path / "b", ALONE)
    assert len(losses) == 9
    assert np.allclose(losses, alone, rtol=1e-10, atol=0)
    for folder in ("2-ramp", "3-anneal"):
        for _, path in finished(tmp_path / "a" / folder / "checkpoint")[-1:]:
            path.rename(tmp_path / f"gone-{folder}")
    again = trained(tmp_path, tmp_path / "a", resume="auto")
    assert again[-1] == losses[-1]
    with pytest.raises(ConfigError, match="earlier recipe"):
        trained(tmp_path, tmp_path / "a")


@pytest.mark.slow
def test_torchrun_on_two_hosts_trains_the_same_recipe(tmp_path):
    """One call of the launcher a stage and host, on another number of ranks each; the same bits as one command."""
    recipe = written(tmp_path, {"first": "[stage.mesh]\ndp = 2", "last": "[stage.mesh]\ntp = 2\ncp = 2"})
    trained(
        tmp_path, tmp_path / "a", {"first": "[stage.mesh]\ndp = 2", "last": "[stage.mesh]\ntp = 2\ncp = 2"}
    )
    said = ""
    for stage, ranks in (("short", 1), ("ramp", 1), ("anneal", 2)):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        agents = [
            subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node),
                 "--nproc-per-node", str(ranks), "--master-addr", "127.0.0.1", "--master-port", str(port),
                 "-m", "tracekit_cli.reftrain", "run", "--recipe", str(recipe), "--stage", stage,
                 "--out", str(tmp_path / "b")],
                stderr=subprocess.PIPE, text=True,
            )
            for node in range(2)
        ]  # fmt: skip
        for agent in agents:
            said += agent.communicate(timeout=240)[1]
            assert agent.returncode == 0, said
    assert [said.count(f"stage {name}: ") for name in ("short", "ramp", "anneal")] == [1, 1, 1]
    for part in ("1-short/checkpoint", "2-ramp/checkpoint", "3-anneal/checkpoint", "average"):
        (_, one), *_ = reversed(finished(tmp_path / "a" / part))
        (_, two), *_ = reversed(finished(tmp_path / "b" / part))
        ours, theirs = read_whole(one), read_whole(two)
        assert set(ours) == set(theirs)
        assert all(
            torch.equal(ours[name], theirs[name]) for name in ours if isinstance(ours[name], torch.Tensor)
        )
    assert losses(tmp_path / "a") == losses(tmp_path / "b")


def test_a_stage_before_its_turn_is_refused(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="holds no checkpoint of step 4; train short first"):
        trained(tmp_path, tmp_path / "a", only="ramp")
    with pytest.raises(ConfigError, match="choose one of short, ramp, anneal"):
        trained(tmp_path, tmp_path / "a", only="rump")
    for name, value in (("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "3")):
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="--stage NAME"):
        trained(tmp_path, tmp_path / "a")


@pytest.mark.slow
def test_the_average_is_the_mean_of_checkpoints(tmp_path):
    trained(tmp_path, tmp_path / "a")
    paths = [path for _, path in finished(tmp_path / "a" / "3-anneal" / "checkpoint")]
    assert len(paths) == 3
    found = read_whole(tmp_path / "a" / "average" / "step-00000009")
    held = [read_whole(path) for path in paths]
    for key, tensor in found.items():
        expected = torch.stack([h[key] for h in held]).mean(0) if key.startswith("model.") else held[-1][key]
        assert torch.allclose(tensor, expected, rtol=1e-14, atol=0)
    assert not torch.equal(found["model.output.weight"], held[-1]["model.output.weight"])
    assert torch.equal(averaged(paths)["model.output.weight"], found["model.output.weight"])


@pytest.mark.slow
def test_an_average_is_a_checkpoint_to_start_from(tmp_path):
    trained(tmp_path, tmp_path / "a")
    path = written(tmp_path)
    arguments = ["run", "--out", str(tmp_path / "c"), "--mesh", "dp=2", "--steps", "10", "--quiet"]
    arguments += ["--resume", str(tmp_path / "a" / "average"), "--set", "numerics.policy=fp64"]
    arguments += ["--set", "model.layers=2", "--set", "model.dim=32", "--set", "model.ffn_dim=32"]
    result = CliRunner().invoke(reftrain, arguments)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "c" / "metrics" / "rank0.jsonl").read_text())
    assert row["step"] == 9
    assert path.exists()


def test_every_stage_is_planned_in_one_table(tmp_path):
    result = CliRunner().invoke(
        reftrain, ["plan", "--recipe", str(written(tmp_path)), "--quiet", "--json", "-"]
    )
    found = json.loads(result.output)["stages"]
    assert [(s["name"], s["sequences"], s["seq_len"]) for s in found] == [
        ("short", 6, 32),
        ("ramp", 12, 32),
        ("anneal", 6, 96),
    ]
    assert [np.prod(list(s["taken"].values())) for s in found] == [3, 3, 4]
    shown = CliRunner().invoke(reftrain, ["plan", "--recipe", str(written(tmp_path)), "--quiet"]).output
    assert all(name in shown for name in ("short", "ramp", "anneal", "hours in all"))


@pytest.mark.parametrize(
    "arguments",
    [
        ["plan", "--recipe", "{}", "--preset", "8b"],
        ["plan", "--gpus", "8"],
        ["run", "--recipe", "{}", "--steps", "3"],
        ["run", "--recipe", "{}", "--mesh", "dp=2"],
    ],
)
def test_flags_that_a_recipe_answers_are_refused(tmp_path, monkeypatch, arguments):
    path = str(written(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(reftrain, [path if a == "{}" else a for a in arguments])
    assert result.exit_code == 2
    assert "--recipe" in result.output
    assert not Path("run").exists()
