"""What must hold within one run: copies, recomputation, messages, results of all-reduces, what is saved."""

import pytest
import torch

from numerics.columns import Names, read_columns
from numerics.comparison.broken_invariants.invariants import broken_invariants
from numerics.record.recorder import Recorder
from numerics.store import open_capture
from tests.numerics.synthetic import Plan, write

A, B = torch.arange(6.0), torch.arange(6.0) + 1


def broken(folder, rows, world=2):
    """Record (rank, value, fields) rows and return the broken invariants."""
    for rank in range(world):
        with Recorder(folder, rank, world, {"dp": rank}) as to:
            for at, value, fields in rows:
                if at == rank:
                    to.record("x", value, **{"step": 0, "phase": "forward", "kind": "activation", **fields})
    return broken_invariants(read_columns(open_capture(folder), Names()))


def test_a_sound_run_breaks_none(tmp_path):
    assert broken_invariants(read_columns(open_capture(write(tmp_path, Plan(tp=2, dp=2))), Names())) == []


def test_copies(tmp_path):
    fields = {"phase": "step", "kind": "param"}
    assert broken(tmp_path / "a", [(0, A, fields), (1, A, {**fields, "replica": 1})]) == []
    (one,) = broken(tmp_path / "b", [(0, A, fields), (1, B, {**fields, "replica": 1})])
    assert one.name == "copies"
    assert "ranks 1 and 0 hold the same part of x" in one.sentence
    three = [(0, B, fields), (1, A, fields), (2, A, fields)]
    (one,) = broken(tmp_path / "c", three, world=3)
    assert "ranks 0 and 1, 2" in one.sentence  # the odd one out is named first
    unlike = [(0, A, fields), (1, B, fields), (2, A + 9, fields)]
    (one,) = broken(tmp_path / "d", unlike, world=3)
    assert "ranks 0, 1, 2 hold the same part of x" in one.sentence


def test_partials_micro_batches_and_metrics_are_no_copies(tmp_path):
    assert broken(tmp_path / "a", [(0, A, {"partial": "dp=0"}), (1, B, {"partial": "dp=1"})]) == []
    assert broken(tmp_path / "b", [(0, A, {"micro_batch": 0}), (1, B, {"micro_batch": 0})]) == []
    assert broken(tmp_path / "c", [(0, A, {"kind": "metric"}), (1, B, {"kind": "metric"})]) == []


def updates(*made):
    """Two ranks that train three steps, with the (rank, step) that update."""
    trains = [(rank, A, {"phase": "backward", "step": n}) for rank in (0, 1) for n in range(3)]
    return trains + [(rank, A, {"phase": "step", "kind": "param", "step": n}) for rank, n in made]


@pytest.mark.parametrize(
    ("made", "found"),
    [
        ([(0, 0), (1, 0), (1, 1), (0, 2), (1, 2)], ["updates"]),
        ([(0, 0), (1, 0), (0, 2), (1, 2)], []),  # both skip it
        ([(0, 0), (0, 1), (0, 2)], []),  # rank 1 has no optimizer
        ([(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)], []),  # the record of rank 1 ends before the last one
    ],
    ids=["one skips", "both skip", "one never updates", "the record ends"],
)
def test_ranks_update_in_the_same_steps(tmp_path, made, found):
    broke = broken(tmp_path, updates(*made))
    assert [one.name for one in broke] == found
    for one in broke:
        assert one.sentence == "rank 0 makes no update in step 1, in which rank 1 makes one"


@pytest.mark.parametrize("value", [A, B])
def test_recomputation(tmp_path, value):
    rows = [(0, A, {"micro_batch": 1}), (0, value, {"micro_batch": 1, "phase": "backward"})]
    names = [one.name for one in broken(tmp_path, rows, world=1)]
    assert names == ([] if value is A else ["recompute"])


@pytest.mark.parametrize("value", [A, B])
def test_saving(tmp_path, value):
    rows = [(0, A, {"kind": "param", "phase": "step"}), (0, value, {"kind": "param", "phase": "save"})]
    names = [one.name for one in broken(tmp_path, rows, world=1)]
    assert names == ([] if value is A else ["save_load"])


def collective(kind, op, axis="pp"):
    return {"kind": kind, "op": op, "axis": axis, "label": "x", "group": [0, 1], "micro_batch": 0}


@pytest.mark.parametrize("value", [A, B])
def test_all_reduce_leaves_the_same(tmp_path, value):
    rows = [
        (0, A, collective("collective_out", "all_reduce")),
        (1, value, collective("collective_out", "all_reduce")),
    ]
    names = [one.name for one in broken(tmp_path, rows)]
    assert names == ([] if value is A else ["all_reduce"])


@pytest.mark.parametrize("value", [A, B])
def test_messages_of_the_pipeline_arrive(tmp_path, value):
    send, receive = collective("collective_in", "send"), collective("collective_out", "recv")
    for rank in range(2):
        with Recorder(tmp_path, rank, 2, {"pp": rank}) as to:
            given = A if rank == 0 else value
            to.record("x", given, step=0, phase="forward", **(send if rank == 0 else receive))
    found = broken_invariants(read_columns(open_capture(tmp_path), Names()))
    assert [one.name for one in found] == ([] if value is A else ["message"])


def test_blocks_that_travel_round_a_ring_are_no_messages(tmp_path):
    """Every rank sends its own block under one name: what was sent is not what the same rank gets."""
    rows = []
    for rank, (mine, other) in enumerate([(A, B), (B, A)]):
        rows += [
            (rank, mine, collective("collective_in", "send", "cp")),
            (rank, other, collective("collective_out", "recv", "cp")),
        ]
    assert broken(tmp_path, rows) == []
