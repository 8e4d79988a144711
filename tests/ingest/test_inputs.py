"""The peer of a message is read from the inputs of its call, and from no other operator's."""

import json

import pytest

from tests.ingest.sample import document, event, scanned

SEND = ["", "", "3", "0"]


def peer(name, inputs, beside=""):
    """What both readers make of a call's inputs; with `beside`, another event sends them the slow way."""
    call = event(1, name=name, args={"Concrete Inputs": inputs})
    other = event(2, name="aten::mm", args={"Concrete Inputs": beside or ["", "7", "8"]})
    rows, record = scanned(json.dumps(document([event(0), call, other])).encode())
    assert [r["name"] for r in rows][1:] == [name, "aten::mm"]
    assert not record.issues.total()
    assert rows[2]["input_peer"] is None
    return rows[1]["input_peer"]


@pytest.mark.parametrize("beside", ["", "no list", [1, [2]]])
def test_inputs_end_in_peer_and_tag(beside):
    assert peer("c10d::send", SEND, beside) == 3
    assert peer("c10d::recv_", SEND, beside) == 3


@pytest.mark.parametrize(
    "inputs", [[], ["3"], ["", "x", "0"], ["", "-1", "0"], ["", "9" * 40, "0"], 5, [[3], 0]]
)
def test_other_inputs_name_nobody(inputs):
    assert peer("c10d::send", inputs) is None


def test_operators_without_a_peer_are_left_out():
    assert peer("c10d::recv_any_source_", SEND) is None
