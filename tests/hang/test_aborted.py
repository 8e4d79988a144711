"""Dumps written after a time-out ended what was outstanding: messages, and calls that one device alone lacks."""

import pytest

from tests.hang.parted import STEP, steps, write, write_groups

PIPELINE = {"1": ((0, 1, 2), "PIPELINE_MODEL_PARALLEL_GROUP")}
FORWARD = ("forward", 30)


def named(finding):
    return {c.rank: c.kind for c in finding.culprits}


def chain(last, *, stopped=1):
    """Three stages that pass on five micro-batches; the stage `stopped` makes no message of the sixth."""
    rows = {}
    for rank in range(3):
        made = [f"recv {rank}<-{rank - 1}"] * (rank > 0) + [f"send {rank}->{rank + 1}"] * (rank < 2)
        calls = [("1", number, op, FORWARD, "done") for number in range(1, 6) for op in made]
        rows[rank] = calls + [("1", 6, made[0], FORWARD, last)] * (rank != stopped)
    return rows


@pytest.mark.parametrize("record", [0, 70])
@pytest.mark.parametrize("last", ["open", "late"])
def test_messages_ended_by_a_time_out_are_outstanding(tmp_path, last, record):
    assert named(write_groups(tmp_path, PIPELINE, chain(last), record=record)) == {1: "host_stalled"}


def test_message_that_met_in_time_is_done(tmp_path):
    rows = chain("late")
    rows[1] += [("1", 6, "recv 1<-0", FORWARD, "done"), ("1", 6, "send 1->2", FORWARD, "done")]
    rows[0].append(("1", 7, "send 0->1", FORWARD, "late"))
    rows[2][-1] = (*rows[2][-1][:4], "done")
    finding = write_groups(tmp_path, PIPELINE, rows)
    assert named(finding) == {1: "host_stalled"}


def test_device_behind_with_later_calls_aborted(tmp_path):
    behind = [*steps(4), *[(seq, "all_reduce", STEP, "late") for seq in (5, 6, 7)]]
    waiting = [*steps(5), *[(seq, "all_reduce", STEP, "open") for seq in (6, 7)]]
    aborted = [*steps(5), *[(seq, "all_reduce", STEP, "late") for seq in (6, 7)]]
    assert named(write(tmp_path, [waiting, behind, aborted, waiting])) == {1: "device_stalled"}
