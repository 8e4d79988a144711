"""The erasures take away what they say and nothing else; an answer that names another rank is wrong."""

from copy import deepcopy
from random import Random

import pytest

from tests.property.reach import word
from tests.property.taken_away import TAKEN

ARGS = {
    "Collective name": "send", "Seq": 3, "Rank": 1, "Dst Rank": 5, "Process Group Name": "7",
    "Process Group Description": "pp", "Process Group Ranks": "[1, 5]", "External id": 9, "Concrete Inputs": ["", "1"],
}  # fmt: skip


def traces():
    events = [
        {"cat": "cpu_op", "name": "record_param_comms", "ts": 1.0, "args": dict(ARGS)},
        {"cat": "user_annotation", "name": "nccl:send 0->1", "ts": 1.0, "args": {}},
        {"cat": "user_annotation", "name": "ProfilerStep#3", "ts": 0.0, "args": {}},
        {"cat": "kernel", "name": "ncclDevKernel_SendRecv", "ts": 2.0, "args": dict(ARGS)},
    ]
    info = {"pg_config": [{"pg_name": "7", "pg_desc": "pp", "ranks": [1, 5]}]}
    trace = {"traceEvents": events, "distributedInfo": info}
    return {f"rank{n}.json": deepcopy(trace) for n in range(4)}


@pytest.mark.parametrize("what", TAKEN)
def test_each_erasure_changes_its_copy_alone(what):
    whole = traces()
    left = TAKEN[what](whole, Random(1))
    assert whole == traces()
    assert left != whole or what == "arguments of 10 %"
    assert set(left) <= set(whole)


def test_peers_leave_no_trace_of_themselves():
    told = str(TAKEN["all fields that name peers"](traces(), Random(1)))
    assert not any(text in told for text in ("Dst Rank", "'Rank'", "nccl:send", "Concrete Inputs"))
    assert "Process Group Ranks" in told


@pytest.mark.parametrize(
    ("answer", "culprits", "expected"),
    [
        (("slow_rank", (5,)), {5}, "survives"),
        (("slow_rank", (4, 5)), {5}, "wrong"),
        (("healthy", ()), {5}, "wrong"),
        (("inconclusive", ()), {5}, "open"),
        (("healthy", ()), set(), "survives"),
        (("slow_rank", (1,)), set(), "wrong"),
    ],
)
def test_answers_are_told_apart(answer, culprits, expected):
    assert word(answer, culprits, "slow_rank" if culprits else "healthy") == expected
