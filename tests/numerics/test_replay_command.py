"""`numerics replay` and `numerics plan` as users call them, and the replayer's refusals."""

import json
import shutil

import pytest
from click.testing import CliRunner
from tracekit_cli.numerics_commands.replay import plan, replay

from numerics.order.order_plan import read_plan
from numerics.order.replayer import make_replay, replayer
from numerics.store import open_capture
from reftrain.errors import ReftrainError
from reftrain.job.baseline import two_dimensional
from reftrain.job.launcher import launch
from reftrain.replay.command import main
from reftrain.replay.manifest import configuration, described, read_manifest
from tests.numerics.replay_runs import config_of, unequal
from tracekit.errors import InputError


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A captured run of one rank, made in this process."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    launch(config_of(folder, {"data": {"batch_size": 2}}), lambda _: [])
    return folder


@pytest.fixture
def copy(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def changed_manifest(folder, **fields):
    path = folder / "run.json"
    manifest = json.loads(path.read_text())
    for name, value in fields.items():
        manifest[name] = {**manifest[name], **value} if isinstance(value, dict) else value
    path.write_text(json.dumps(manifest))


@pytest.mark.slow
def test_the_command_replays_into_the_run_by_default(copy):
    result = CliRunner().invoke(replay, [str(copy)])
    assert result.exit_code == 0, result.output
    made = copy / "replay"
    assert result.stdout.strip() == str(made)
    assert not unequal(copy, made)
    assert open_capture(made).source == "reftrain.replay"
    assert json.loads((made / "run.json").read_text())["faults"] == []
    assert read_plan(made).source == "declared"
    assert not [p for p in copy.iterdir() if p.name.startswith(".")]


@pytest.mark.slow
def test_a_replay_takes_the_place_of_an_earlier_one(copy):
    first = make_replay(copy, steps=1)
    assert open_capture(first).table.column("step").to_pylist()[-1] == 0
    second = make_replay(copy)
    assert second == first
    assert not unequal(copy, second)


@pytest.mark.slow
def test_a_run_that_ended_early_is_replayed_so_far(copy):
    changed_manifest(copy, steps=1_000_000_000)
    assert set(open_capture(make_replay(copy)).table.column("step").to_pylist()) == set(
        open_capture(copy).table.column("step").to_pylist()
    )


@pytest.mark.slow
def test_values_are_kept_when_asked_for(copy):
    made = make_replay(copy, copy.parent / "values", level="tensors", steps=1)
    assert open_capture(made).values


@pytest.mark.slow
def test_forced_replay_is_asked_of_the_program(copy):
    made = make_replay(copy, copy.parent / "forced", forced=True)
    assert not unequal(copy, made)
    assert not (made / "exact").exists()


def test_something_else_is_never_overwritten(copy):
    other = copy.parent / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="holds no replay"):
        make_replay(copy, other)
    with pytest.raises(InputError, match="the run itself"):
        make_replay(copy, copy)
    with pytest.raises(InputError, match="the run itself"):
        make_replay(copy, copy.parent)
    assert (other / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"device": "cuda"}, "NCCL"),
        ({"numerics": {"attention": "flex"}}, "attention kernel flex .*documents, flash"),
        (
            {"schedule": {"schedule": "pipedream"}, "optimizer": {"clip_norm": 0.0}},
            "schedule pipedream .*1f1b",
        ),
        (
            {"schedule": {"schedule": "chimera", "concatenation": "doubling"}, "parallel": {"pp": 2}},
            "doubling, which computes forwards twice",
        ),
    ],
)
def test_runs_without_a_matched_baseline_are_refused_by_name(copy, fields, words):
    changed_manifest(copy, **fields)
    with pytest.raises(ReftrainError, match=words):
        configuration(read_manifest(copy), copy)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda run: (run / "order_plan.json").unlink(), "no order_plan.json"),
        (lambda run: (run / "order_plan.json").write_text("{}"), "order_plan.json"),
        (lambda run: (run / "run.json").write_text("[1"), "run.json"),
        (lambda run: (run / "run.json").write_text('{"schema": "x"}'), "reftrain's own runs"),
        (lambda run: changed_manifest(run, model={"layers": "two"}), "model.layers"),
        (lambda run: changed_manifest(run, model={"memory": 8}), "model.memory"),
        (
            lambda run: changed_manifest(run, model={"experts": 4}),
            "declares model.experts = 4, and the capture holds no",
        ),
        (lambda run: changed_manifest(run, parallel={"dp": 2}), "of two runs"),
    ],
)
def test_damaged_runs_end_in_a_sentence(copy, capsys, damage, words):
    damage(copy)
    with pytest.raises(SystemExit) as end:
        main([str(copy), "--out", str(copy.parent / "out")])
    assert end.value.code in {2, 3}
    talk = capsys.readouterr().err
    assert words in talk
    assert "Traceback" not in talk


@pytest.mark.slow
def test_the_command_passes_the_reason_on(copy):
    changed_manifest(copy, device="cuda")
    with pytest.raises(InputError, match="NCCL"):
        make_replay(copy)
    assert not (copy / "replay").exists()
    assert not [p for p in copy.iterdir() if p.name.startswith(".")]


@pytest.mark.slow
def test_an_unknown_variant_is_refused(copy):
    with pytest.raises(InputError, match="is not a variant"):
        make_replay(copy, variants=["rope=int3"])


def test_a_trainer_without_a_replayer_is_named():
    assert replayer("reftrain").module == "reftrain.replay.command"
    with pytest.raises(InputError, match="no replayer for captures of 'megatron'"):
        replayer("megatron")


@pytest.mark.slow
def test_plan_of_recorded_against_declared(copy):
    make_replay(copy, steps=1)
    result = CliRunner().invoke(plan, [str(copy), str(copy / "replay")], standalone_mode=False)
    assert result.exit_code == 0, result.output
    assert "the order plans are the same" in result.stdout


def test_plan_lists_what_may_differ(copy, tmp_path):
    other = tmp_path / "other"
    tables = {"data": {"batch_size": 2}, "numerics": {"policy": "fp32"}}
    launch(config_of(other, tables), lambda _: [])
    result = CliRunner().invoke(plan, [str(copy), str(other)], standalone_mode=False)
    assert "policy: bf16, not fp32" in result.stdout
    assert "may differ" in result.stdout
    document = CliRunner().invoke(plan, [str(copy), str(other), "--json", "-"], standalone_mode=False)
    answer = json.loads(document.stdout)
    assert answer["schema"] == "numerics.plan/1"
    assert answer["local"] == [{"name": "policy", "left": "bf16", "right": "fp32"}]
    assert any(row["may_differ"] for row in answer["tensors"])


def test_plan_without_a_plan_says_so(copy, tmp_path):
    (copy / "order_plan.json").unlink()
    result = CliRunner().invoke(plan, [str(copy), str(tmp_path)], standalone_mode=False)
    assert isinstance(result.exception, InputError)
    assert "order_plan.json" in str(result.exception)


def test_the_2d_baseline_keeps_micro_batches_without_pipeline(run, tmp_path):
    tables = {
        "mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2, "zero": 2},
        "model": {"layers": 4},
        "data": {"batch_size": 8},
        "pipeline": {"schedule": "gpipe"},
    }
    config = config_of(run, tables)
    flat = two_dimensional(config, tmp_path / "flat", "digest", ())
    assert (flat.mesh.tp, flat.mesh.cp, flat.mesh.pp, flat.mesh.dp) == (2, 1, 1, 2)
    assert (flat.micro_batches, flat.data) == (config.micro_batches, config.data)
    assert (flat.model, flat.optimizer, flat.seed) == (config.model, config.optimizer, config.seed)
    assert flat.pipeline.schedule == "gpipe"
    assert flat.evidence.capture == "digest"


@pytest.mark.slow
def test_the_2d_baseline_is_run_by_the_trainer(copy):
    result = CliRunner().invoke(
        replay, [str(copy), "--baseline", "2d", "--out", str(copy.parent / "flat"), "--quiet"]
    )
    assert result.exit_code == 0, result.output
    made = open_capture(copy.parent / "flat")
    assert made.source == "reftrain"
    assert not unequal(copy, copy.parent / "flat")


def test_the_2d_baseline_never_goes_to_the_replays_place(copy):
    result = CliRunner().invoke(replay, [str(copy), "--baseline", "2d"])
    assert result.exit_code == 2
    assert "needs --out" in result.output


def test_a_manifest_says_all_that_was_computed(run):
    config = config_of(run, {"data": {"batch_size": 2}})
    found = described(read_manifest(run), run)
    for table in ("model", "mesh", "data", "numerics", "optimizer"):
        assert getattr(found, table) == getattr(config, table)
    assert (found.steps, found.seed, found.threads) == (config.steps, config.seed, config.threads)
