"""A few cases end to end, what dumps look like, and what counts as right."""

import ast
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from tests.hang_shapes.__main__ import one
from tests.hang_shapes.answer import read
from tests.hang_shapes.case import Made, make, save
from tests.hang_shapes.draw import CAUSES, drawn_case
from tests.hang_shapes.report import tables
from tests.hang_shapes.score import Outcome
from tests.marks import quick_first

SEEDS = (25, 15, 26, 22, 13)
HOST = Outcome(0, "megatron", "host_stall", 8, (3,), ("host_stalled",), "hang", (3,), ("host_stalled",))
LINK = replace(HOST, cause="link", culprits=(), kinds=(), named=(), named_kinds=(), verdict="inconclusive")


@pytest.mark.parametrize("seed", quick_first(1, SEEDS))
def test_case_is_answered(seed: int, tmp_path: Path) -> None:
    outcome = one(seed, tmp_path)
    assert outcome.result == "right", outcome
    assert json.loads((tmp_path / "truth.json").read_text())["culprits"] == list(outcome.culprits)


@pytest.mark.slow
def test_rings_that_are_too_short_leave_it_open(tmp_path: Path) -> None:
    """A device is stuck in an all-to-all that two of its peers no longer hold in their rings."""
    outcome = one(27, tmp_path)
    assert (outcome.result, outcome.named) == ("open", ())


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        (HOST, "right"),
        (replace(HOST, named=(3, 4)), "innocent accused"),
        (replace(HOST, named=(), verdict="inconclusive"), "open"),
        (replace(HOST, named=(), verdict="none"), "false none"),
        (replace(HOST, error="no answer"), "error"),
        (LINK, "right"),
        (replace(LINK, named=(1,), verdict="hang"), "innocent accused"),
        (replace(LINK, verdict="none"), "false none"),
        (replace(LINK, cause="busy"), "open"),
        (replace(LINK, cause="busy", verdict="none"), "right"),
    ],
)
def test_answers_are_scored(outcome: Outcome, result: str) -> None:
    assert outcome.result == result


def test_wrong_kind_is_counted_apart() -> None:
    wrong = replace(HOST, named_kinds=("device_stalled",))
    assert (HOST.kind_right, wrong.kind_right, LINK.kind_right) == (True, False, None)
    assert "kind right in 1 of 2" in tables([HOST, wrong, LINK])


def test_answer_that_is_no_json_is_an_error() -> None:
    outcome = replace(HOST)
    read("", "hint\nno dumps\n", outcome)
    assert (outcome.error, outcome.result) == ("no dumps", "error")


def saved(made: Made, folder: Path) -> dict[int, dict[str, object]]:
    """The dumps of a case by rank."""
    save(made, folder / "dumps")
    names = made.case.recorder.names
    loads = json.loads if made.case.recorder.json else pickle.loads
    return {
        int(path.stem.removeprefix(names)): loads(path.read_bytes()) for path in (folder / "dumps").iterdir()
    }


def test_crashed_node_leaves_no_files(tmp_path: Path) -> None:
    made = make(drawn_case(192))
    dumps = saved(made, tmp_path)
    assert set(dumps) == set(range(made.case.job.mesh.world)) - set(made.culprits)
    assert made.culprits


def test_stalled_host_enqueues_less_than_its_group(tmp_path: Path) -> None:
    made = make(drawn_case(168))
    (culprit,) = made.culprits
    issued = {host.program.rank: len(host.made) for host in made.hosts}
    assert issued[culprit] <= max(issued.values())
    for dump in saved(made, tmp_path).values():
        groups = dump["pg_config"]
        assert isinstance(groups, dict)
        assert all(ast.literal_eval(group["ranks"]) for group in groups.values())
        entries = dump.get("entries", [])
        assert isinstance(entries, list)
        numbers = [entry["record_id"] for entry in entries]
        assert len(numbers) <= made.case.recorder.capacity
        assert numbers == sorted(numbers)


def test_seeds_take_turns_among_causes() -> None:
    assert {drawn_case(seed).cause for seed in range(len(CAUSES))} == set(CAUSES)


def test_members_count_collectives_alike(tmp_path: Path) -> None:
    """Messages move the counters of a pipeline's group alone, each of its stages by its own number."""
    save(make(drawn_case(14)), tmp_path / "dumps")
    told: dict[str, list[set[int]]] = {}
    for path in (tmp_path / "dumps").iterdir():
        rows = json.loads(path.read_text())["entries"]
        done = [row for row in rows if row["state"] == "completed" and not row["is_p2p"]]
        for name in {row["process_group"][0] for row in done}:
            numbers = {row["collective_seq_id"] for row in done if row["process_group"][0] == name}
            told.setdefault(name, []).append(numbers)
    assert told
    assert all(set.intersection(*numbers) for numbers in told.values())


def ended(dump: dict[str, object]) -> dict[str, int]:
    """The last collective of each group that a dump knows to be done."""
    rows = dump.get("entries", [])
    assert isinstance(rows, list)
    done = [row for row in rows if row["state"] == "completed" and not row["is_p2p"]]
    return {row["process_group"][0]: row["collective_seq_id"] for row in done}


def test_lost_device_sees_no_more_ends(tmp_path: Path) -> None:
    """Its peers have done a call with it that it has not seen end."""
    made = make(drawn_case(7000, "device_blind"))
    dumps = {rank: ended(dump) for rank, dump in saved(made, tmp_path).items()}
    (culprit,) = made.culprits
    own = dumps.pop(culprit)
    assert own
    assert any(dump.get(group, -1) > number for dump in dumps.values() for group, number in own.items())


def test_status_is_as_old_as_the_watchdogs_last_look(tmp_path: Path) -> None:
    made = make(
        replace(drawn_case(18), recorder=replace(drawn_case(18).recorder, version=(2, 9), active=False))
    )
    late = 0
    for dump in saved(made, tmp_path).values():
        status, groups = dump["pg_status"], dump["entries"]
        assert isinstance(status, dict)
        assert isinstance(groups, list)
        local = {row["process_group"][0]: str(row["pg_id"]) for row in groups}
        told = {group: int(status[number]["last_completed_collective"]) for group, number in local.items()}
        assert all(told[group] <= number for group, number in ended(dump).items())
        late += any(told[group] < number for group, number in ended(dump).items())
    assert late
