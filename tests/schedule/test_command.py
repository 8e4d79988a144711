"""`reftrain schedule` as users call it: the contract reftrain.schedule/1, files, pictures, bad input."""

import json
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tracekit_cli import reftrain

ONE_F = ["schedule", "1f1b", "--stages", "4", "--micro-batches", "8"]


@pytest.fixture
def call(monkeypatch, capsys):
    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["reftrain", *map(str, arguments)])
        code = 0
        try:
            reftrain.main()
        except SystemExit as stop:
            code = stop.code
        out = capsys.readouterr()
        return code or 0, out.out, out.err

    return run


def test_the_contract(call):
    code, out, err = call(*ONE_F, "--cost", "f=1,b=2,p2p=0", "--json", "-")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told["schema"] == "reftrain.schedule/1"
    assert (told["name"], told["stages"], told["micro_batches"], told["synchronous"]) == ("1f1b", 4, 8, True)
    assert told["makespan"] == 33
    assert told["bubble_ratio"] == pytest.approx(3 / 11, abs=1e-12)
    assert told["bubble_over_compute"] == pytest.approx(3 / 8, abs=1e-12)
    assert told["weights_per_rank"] == [1, 1, 1, 1]
    assert told["peak_activations_per_rank"] == [4, 3, 2, 1]
    assert told["actions"][0][:5] == ["F0.0", "F0.1", "F0.2", "F0.3", "B0.0"]
    assert [len(actions) for actions in told["actions"]] == [16] * 4


def test_costs_move_the_answer(call):
    plain = json.loads(call(*ONE_F, "--json", "-")[1])
    slow = json.loads(call(*ONE_F, "--cost", "p2p=1/2", "--json", "-")[1])
    assert slow["makespan"] > plain["makespan"]
    long_stage = json.loads(call(*ONE_F, "--cost", "f=1:1:1:2,b=2:2:2:4", "--json", "-")[1])
    assert (
        long_stage["makespan"] == 3 + 8 * 6 + 6
    )  # the last stage is the bottleneck: 3 f before it, 3 b after it


def test_an_asynchronous_schedule_has_no_steady_state_bubble(call):
    told = json.loads(call("schedule", "pipedream", "--stages", 4, "--micro-batches", 4, "--json", "-")[1])
    assert told["synchronous"] is False
    assert told["bubble_ratio"] == 0
    assert told["weights_per_rank"] == [4, 3, 2, 1]
    assert told["makespan"] == 21  # of the four micro-batches asked for, filled and drained


def test_the_same_call_gives_the_same_bytes(call, tmp_path):
    arguments = (
        "schedule",
        "chimera",
        "--stages",
        8,
        "--micro-batches",
        16,
        "--concat",
        "halving",
        "--zero",
        2,
    )
    outputs = [call(*arguments, "--json", "-", "--svg", tmp_path / f"{i}.svg")[1] for i in range(2)]
    assert outputs[0] == outputs[1]
    assert (tmp_path / "0.svg").read_bytes() == (tmp_path / "1.svg").read_bytes()


def test_tables_written_are_read_again(call, tmp_path):
    call(
        "schedule",
        "zb_h1",
        "--stages",
        3,
        "--micro-batches",
        4,
        "--csv",
        tmp_path / "t.csv",
        "--text",
        tmp_path / "t.txt",
    )
    for name in ("t.csv", "t.txt"):
        code, out, _ = call("schedule", tmp_path / name, "--json", "-")
        assert code == 0
        told = json.loads(out)
        assert (told["stages"], told["micro_batches"], told["bubble_ratio"]) == (3, 4, pytest.approx(1 / 7))


def test_a_table_torch_cannot_load_says_so(call, tmp_path):
    _, _, err = call("schedule", "gems", "--stages", 4, "--micro-batches", 4, "--csv", tmp_path / "t.csv")
    assert "torch cannot load this table" in err


def test_time_line_without_a_terminal_is_plain(call):
    _, out, _ = call(*ONE_F)
    assert "\x1b" not in out
    assert "   0  F0F1F2F3............B0--F4B1--" in out
    assert "bubble 27.27% of the time, 37.50% of the computation" in out


def test_a_long_time_line_is_squeezed(call):
    _, out, _ = call("schedule", "1f1b", "--stages", 8, "--micro-batches", 400)
    rows = [line for line in out.splitlines() if line.startswith("   0  ") and set(line[6:]) <= set("FB.")]
    assert len(rows) == 1
    assert max(map(len, out.splitlines())) <= 120


def test_the_picture_is_well_formed_and_escaped(call, tmp_path):
    table = tmp_path / "t.txt"
    call(*ONE_F, "--text", table)
    table.write_text(table.read_text().replace("1f1b", '<script>alert("x")</script>', 1))
    code, _, err = call("schedule", table, "--svg", tmp_path / "t.svg")
    assert (code, err) == (0, "")
    text = (tmp_path / "t.svg").read_text()
    assert "<script" not in text
    root = ET.fromstring(text)
    rects = root.findall(".//{http://www.w3.org/2000/svg}rect")
    assert sum(1 for r in rects if r.find("{http://www.w3.org/2000/svg}title") is not None) == 64


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["chimera", "--stages", "3", "--micro-batches", "3"],
            "chimera cannot merge two directions over 3 stages",
        ),
        (
            ["flexible", "--stages", "4", "--micro-batches", "7", "--k", "9"],
            "flexible cannot run 9 of 7 micro-batches consecutively; give k at most 7",
        ),
        ([*ONE_F[1:], "--k", "2"], "1f1b has no rounds of consecutive micro-batches"),
        (["1f1b", "--micro-batches", "3"], "give --stages P --micro-batches M"),
        ([*ONE_F[1:], "--cost", "f=fast"], "f='fast' is not a number"),
        ([*ONE_F[1:], "--cost", "g=1"], "'g=1' is not a cost"),
        ([*ONE_F[1:], "--cost", "f=-1"], "f=-1 is out of bounds"),
        ([*ONE_F[1:], "--cost", "f=1:2"], "f has 2 values for 4 virtual stages"),
        ([*ONE_F[1:], "--cost", "b=1,w=2"], "a part of the backward of stage 0 is longer than b"),
        ([*ONE_F[1:], "--cost", "f=1e999999"], "is not a number"),
        (["nothere.csv"], "nothere.csv: cannot be read"),
        ([*ONE_F[1:], "--svg", "/nowhere/at/all.svg"], "cannot be written"),
    ],
)
def test_bad_calls_get_one_sentence(call, arguments, words):
    code, out, err = call("schedule", *arguments)
    assert code in {2, 3}
    assert out == ""
    assert words in err
    assert err.count("\n") == 1


def test_a_bad_table_names_rank_slot_and_rule(call, tmp_path):
    (tmp_path / "bad.csv").write_text("0F0,0F1,0B0,0B1\n1F1,1F0,1B0\n")
    code, out, err = call("schedule", tmp_path / "bad.csv")
    assert (code, out) == (2, "")
    assert "bad: rank 1: B1.1 never runs" in err


def test_every_option_stands_in_the_documentation():
    text = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    section = text.split("## `reftrain schedule`")[1].split("\n## ")[0]
    for parameter in reftrain.reftrain.entries["schedule"].load().params:
        for option in parameter.opts:
            if option.startswith("--"):
                assert option in section, option


def test_places_of_replica_sums_change_the_time(call):
    """Lazy sums of a rank's two stages follow the last computation one after the other; eager ones hide the first."""
    sizes = ("chimera", "--stages", "8", "--micro-batches", "8", "--cost", "sync=2", "--json", "-")
    ends = {
        sync: json.loads(call("schedule", *sizes, "--sync", sync)[1])["makespan"]
        for sync in ("lazy", "eager")
    }
    assert ends == {"lazy": 40, "eager": 38}
    assert json.loads(call("schedule", *sizes[:5], "--json", "-")[1])["makespan"] == 36
