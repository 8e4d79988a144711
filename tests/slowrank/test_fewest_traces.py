"""Of ranks without a trace those are asked for that decide: the rest of a replica, then one of each other replica."""

import json

import pytest

from tests.generator import generate
from tests.generator.mesh import Mesh as Made
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.case.wording import add_traces, completing, one_each
from tracekit.ingest import load
from tracekit.mesh import from_sizes
from tracekit.report.slowrank_json import slowrank_document

MESH = from_sizes({"tp": 8, "cp": 1, "pp": 16, "dp": 128}, ("tp", "cp", "pp", "dp"))
WORLD = range(MESH.world_size)


def test_half_a_replica_asks_for_its_other_half():
    assert completing(MESH, range(64), range(64, 16384)) == tuple(range(64, 128))


def test_of_two_partial_replicas_the_fuller_is_completed():
    recorded = {*range(64), *range(128, 250)}
    assert completing(MESH, recorded, set(WORLD) - recorded) == tuple(range(250, 256))


def test_whole_replicas_ask_for_one_rank_of_each_other():
    assert completing(MESH, range(128), range(128, 16384)) == ()
    assert one_each(MESH, range(128), range(128, 16384)) == tuple(range(128, 16384, 128))


@pytest.mark.parametrize("order", [("pp", "tp", "cp", "dp"), ("dp", "tp", "cp", "pp")])
def test_replicas_are_told_by_the_mesh_not_by_numbers(order):
    mesh = from_sizes({"tp": 2, "cp": 1, "pp": 4, "dp": 3}, order)
    mine = mesh.line(0, ["tp", "cp", "pp"])
    assert completing(mesh, mine[:5], set(range(24)) - set(mine[:5])) == mine[5:]


def test_advice_is_text_and_numbers():
    advice = add_traces([5, 4, 6], "why")
    assert advice == "add the traces of ranks 4-6: why"
    assert advice.ranks == (4, 5, 6)


def test_a_job_recorded_in_part_lists_what_to_record(tmp_path):
    mesh = Made(("tp", "cp", "pp", "dp"), {"tp": 2, "cp": 1, "pp": 4, "dp": 2})
    case = generate(7, kind="slow_compute", mesh=mesh, missing=set(range(4, 16)), truncated={}, steps=4)
    case.write(tmp_path)
    finding = analyse(load([str(tmp_path)]))
    document = json.loads(json.dumps(slowrank_document(finding)))
    assert finding.verdict == "inconclusive"
    assert document["to_record"] == [4, 5, 6, 7]
    assert "ranks 4-7: they complete the replica" in document["to_decide"]
