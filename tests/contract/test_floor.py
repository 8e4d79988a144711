"""`tracekit.floor/1`: names, types and order of every field, and the relations between them."""

import json

import pytest

import tracekit
from tracekit.report.floor import floor_document
from tracekit.report.slowrank_json import dumps

TOP = [
    "schema", "ranks", "mesh", "steps", "step_ms", "residual_ms", "rank_steps", "total_ns", "flops", "flops_from",
    "peak_tflops", "peak_from", "device",
    "mfu", "parts", "unknown", "limits", "kernels", "coverage", "quality", "notes",
]  # fmt: skip
PART = ["part", "ns", "mean_ms", "share", "brings_ms", "remedy"]
LIMITS = ["no_waiting", "hidden_communication", "best_kernels", "roofline", "plan"]


@pytest.fixture(scope="module")
def document(ingested):
    return json.loads(dumps(floor_document(tracekit.floor(tracekit.load(ingested("demo_slow_tp"))))))


def test_fields_stand_in_their_order(document):
    assert list(document) == TOP
    assert all(list(p) == PART for p in document["parts"])
    assert all(list(u) == ["part", "inside", "needs"] for u in document["unknown"])
    assert [limit["limit"] for limit in document["limits"]] == LIMITS
    assert all((limit["step_ms"] is None) == bool(limit["needs"]) for limit in document["limits"])


def test_parts_add_up_in_whole_ns(document):
    assert sum(p["ns"] for p in document["parts"]) == document["total_ns"]
    mean = document["total_ns"] / document["rank_steps"] / 1e6
    assert mean == pytest.approx(document["step_ms"], abs=1e-3)


def test_a_cpu_trace_has_no_roofline(document):
    hidden = {u["part"] for u in document["unknown"]}
    assert {"small_kernels", "model"} <= hidden
    assert hidden.isdisjoint(p["part"] for p in document["parts"])
    assert [limit["step_ms"] for limit in document["limits"]][3:] == [None, None]
