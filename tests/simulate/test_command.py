"""`reftrain simulate` as users call it: figures, files, refusals with field and remedy."""

import gzip
import json
import sys

import pytest
from tracekit_cli.reftrain import main
from tracekit_cli.reftrain_commands.simulate import parse_ranks

from reftrain.errors import ConfigError
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.lower import lower
from reftrain.schedule.text_form import to_text

SMALL = ["--preset", "8b", "--mesh", "tp=2,cp=1,pp=2,dp=2", "--set", "model.layers=4", "--micro-batches", "4"]


@pytest.fixture
def command(monkeypatch, capsys):
    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["reftrain", "simulate", *arguments])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = stop.code
        out = capsys.readouterr()
        return code, out.out, out.err

    return call


def test_stdout_is_json_alone_with_the_contracts_figures(command):
    code, out, err = command(*SMALL, "--json", "-")
    answer = json.loads(out)
    assert code == 0
    assert answer["schema"] == "reftrain.simulate/1"
    assert answer["mesh"] == {
        "order": ["tp", "cp", "pp", "dp"],
        "sizes": {"tp": 2, "cp": 1, "pp": 2, "dp": 2},
    }
    assert answer["world_size"] == 8
    assert answer["micro_batches"] == 4
    assert len(answer["step_ms"]) == answer["whole_steps"] == 2
    assert 0 < answer["bubble_ratio"] < 0.5
    assert set(answer["exposed"]) == {"tp", "cp", "pp", "dp"}
    assert answer["written"] == {"trace": None, "flight_recorder": None}
    assert "simulating 8 ranks" in err


def test_time_of_a_step_is_accounted_for(command):
    _, out, _ = command(*SMALL, "--json", "-", "--jitter", "0", "--steps", "1")
    answer = json.loads(out)
    for row in answer["pipeline_ranks"]:
        parts = [value for name, value in row.items() if name.endswith("_ms")]
        assert sum(parts) == pytest.approx(answer["step_ms"][0], rel=0.02)


def test_a_form_that_the_host_tells_has_its_rows(command, tmp_path):
    """A job too large for rows of the host has them where kernels name no peer."""
    arguments = ["--preset", "8b", "--mesh", "pp=2,dp=64", "--set", "model.layers=2", "--micro-batches", "2"]
    for form, told in (("2.5-batched", True), ("2.13", False)):
        run = tmp_path / form
        code, *_ = command(
            *arguments, "--trace-form", form, "--ranks", "0", "--steps", "1", "--out", str(run)
        )
        trace = gzip.decompress((run / "trace" / "rank0.json.gz").read_bytes())
        assert (code, b"record_param_comms" in trace, b"Seq" in trace) == (0, told, not told)
    assert command(*SMALL, "--trace-form", "1.0")[0] == 2


def test_out_writes_a_run_folder_and_says_so(command, tmp_path):
    run = tmp_path / "run"
    code, out, _ = command(*SMALL, "--out", str(run), "--ranks", "0-1,6", "--flight-recorder", "--quiet")
    assert code == 0
    assert "traces     3 files" in out
    assert sorted(p.name for p in run.iterdir()) == ["fr", "run.json", "timeline.json", "trace"]
    assert sorted(p.name for p in (run / "trace").iterdir()) == [
        "rank0.json.gz",
        "rank1.json.gz",
        "rank6.json.gz",
    ]
    assert sorted(p.name for p in (run / "fr").iterdir()) == ["rank_0", "rank_1", "rank_6"]


def test_a_hang_is_told_and_dumped_without_asking(command, tmp_path):
    code, out, _ = command(*SMALL, "--out", str(tmp_path), "--fault", "crash:rank=3,steps=1", "--quiet")
    assert code == 0
    assert "the job hangs in step 1: crash:rank=3" in out
    assert sorted(int(p.name.removeprefix("rank_")) for p in (tmp_path / "fr").iterdir()) == [
        0,
        1,
        2,
        4,
        5,
        6,
        7,
    ]


def test_memory_over_time_follows_the_schedules_live_set(command, tmp_path):
    command(*SMALL, "--out", str(tmp_path), "--ranks", "0", "--steps", "1", "--schedule", "gpipe", "--quiet")
    line = json.loads((tmp_path / "timeline.json").read_text())
    first = line["ranks"][0]
    activations = [row[first["memory"]["kinds"].index("activations") + 1] for row in first["memory"]["rows"]]
    assert [name for name, _, _ in first["actions"]] == [f"F0.{i}" for i in range(4)] + [
        f"B0.{i}" for i in (3, 2, 1, 0)
    ]
    one = activations[0]
    assert activations == [one, 2 * one, 3 * one, 4 * one, 3 * one, 2 * one, one, 0]


@pytest.mark.parametrize("name", ["interleaved", "chimera", "zb_h1", "dualpipe_v"])
def test_schedules_with_replicas_and_split_backwards_are_simulated(command, name):
    code, out, _ = command(*SMALL, "--schedule", name, "--json", "-", "--steps", "1")
    assert code == 0
    assert json.loads(out)["schedule"] == name


@pytest.mark.parametrize("zero", [None, 1])
def test_a_tables_file_simulates_like_its_scheme(command, tmp_path, zero):
    """With messages and reductions in it or without; memory over time is the table's own."""
    table = make_schedule("chimera", 2, 1, 4, 1, concatenation="halving")
    path = tmp_path / "table.txt"
    path.write_text(to_text(table if zero is None else lower(table, zero)))
    by_file = ["--schedule", str(path)]
    by_name = ["--schedule", "chimera", "--micro-batches", "4", "--set", "pipeline.concatenation=halving"]
    answers, lines = [], []
    for i, how in enumerate((by_file, by_name)):
        out = tmp_path / f"run{i}"
        code, said, err = command(*SMALL[:6], *how, "--json", "-", "--steps", "1", "--out", str(out))
        assert code == 0, err
        answer = json.loads(said)
        answers.append((answer["step_ms"], answer["bubble_ratio"], answer["exposed"]))
        lines.append((out / "timeline.json").read_bytes())
    assert answers[0] == answers[1]
    assert lines[0] == lines[1]


def configured(folder, *faults):
    """A configuration whose file plants `faults`."""
    file = folder / "run.toml"
    file.write_text(f"[mesh]\ntp = 2\ndp = 2\n[evidence]\nfaults = {json.dumps(faults)}\n")
    return str(file)


def test_faults_of_the_file_are_planted(command, tmp_path):
    file = configured(tmp_path, "slow_compute:rank=2,factor=3")
    slow, other, flag = (
        json.loads(command(file, *more, "--quiet", "--json", "-")[1])
        for more in ([], ["--set", "evidence.faults=[]"], ["--fault", "late_data:rank=1,delay_ms=9"])
    )
    assert [f["kind"] for f in slow["faults"]] == ["slow_compute"]
    assert slow["slowdown"] > 1.05
    assert (other["faults"], other["slowdown"]) == ([], None)
    assert [f["kind"] for f in flag["faults"]] == ["late_data"]


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("slow_compute:rank=9", "evidence.faults: fault.rank: '9' is not a rank"),
        ("slow_compute:rank=1,steps=5", "evidence.faults: fault.steps: 5:6 holds none of the 2 steps"),
        ("P02:layer=1", "evidence.faults: fault: P02:layer=1 makes numbers wrong"),
    ],
)
def test_refused_fault_is_found_in_its_file(command, tmp_path, fault, said):
    file = configured(tmp_path, fault)
    code, _, err = command(file, "--quiet")
    assert (code, f"{file}: {said}" in err) == (2, True), err
    code, _, err = command(configured(tmp_path), "--fault", fault, "--quiet")
    assert (code, "evidence.faults" in err) == (2, False), err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--schedule", "zigzag"], "--schedule: 'zigzag' is unknown; choose"),
        (["--fault", "slow_compute:rank=8"], "'8' is not a rank of a world of 8"),
        pytest.param(
            ["--fault", "slow_compute:rank=1,steps=7"], "holds none of the 2 steps", marks=pytest.mark.slow
        ),
        (["--fault", "host_stall:rank=1,axis=cp"], "rank 1 makes no communication on cp call"),
        (["--hardware", "abacus"], "is not a known machine"),
        (["--ranks", "3-9"], "'3-9' is not within 0-7"),
        (["--jitter", "-1"], "'--jitter': -1.0 is not in the range"),
        (["--mesh", "tp=8,cp=1,pp=16,dp=256"], "32768 ranks are too many; simulate up to 16384"),
        (["--micro-batches", "0"], "--micro-batches"),
        (
            ["--schedule", "flexible", "--micro-batches", "7", "--k", "9"],
            "flexible cannot run 9 of 7 micro-batches consecutively",
        ),
        (["--set", "mesh.dp_shard=1"], "mesh.dp_shard: hybrid sharding is not simulated; leave it out"),
    ],
)
def test_bad_input_is_refused_with_field_and_remedy(command, arguments, said):
    code, _, err = command("--preset", "8b", "--mesh", "tp=2,cp=1,pp=2,dp=2", *arguments, "--quiet")
    assert code == 2
    assert said in err
    assert "Traceback" not in err


def test_k_is_held_against_the_micro_batches_given(command):
    sizes = ["--schedule", "flexible", "--micro-batches", "7", "--k", "6"]
    code, _, err = command("--preset", "tiny", "--mesh", "dp=2,pp=2", *sizes, "--quiet")
    assert (code, err) == (0, "")


def test_a_folder_that_cannot_be_written_is_said(command, tmp_path):
    (tmp_path / "file").write_text("")
    code, _, err = command(*SMALL, "--out", str(tmp_path / "file" / "run"), "--quiet")
    assert code == 3
    assert "name another folder" in err


def test_ranks_are_read():
    assert parse_ranks("all", 3) == [0, 1, 2]
    assert parse_ranks("5,0-2", 8) == [0, 1, 2, 5]
    for text in ("", "a", "1-", "-1", "2-1", "8"):
        with pytest.raises(ConfigError):
            parse_ranks(text, 8)
