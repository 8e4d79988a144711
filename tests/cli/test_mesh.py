"""`tracekit mesh`: the axes, the groups that tell them, and every rank's place; the same in text and JSON."""

import json
from dataclasses import replace

import pytest

import tracekit as library
from tests.cli.program import Program
from tests.slowrank.jobs import grid, job
from tracekit.report.mesh import mesh_document_of, mesh_lines

MESH = grid(tp=2, cp=2, dp=2)


@pytest.fixture
def tracekit(monkeypatch, capfd):
    return Program(monkeypatch, capfd)


def test_a_sample_tells_its_axes(tracekit, ingested, tmp_path):
    done = tracekit("mesh", ingested("slow_compute"), "--quiet", "--json", tmp_path / "mesh.json")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    assert lines[0] == "MESH  tp=2, cp=2, pp=2, dp=2 (inner to outer; inferred from process groups)"
    told = "8 groups of 2, as 0-1 (mesh_tp): all_gather, all_reduce, reduce_scatter"
    assert lines[1].split(maxsplit=1) == ["tp", told]
    assert "messages" in lines[3]
    document = json.loads((tmp_path / "mesh.json").read_text())
    assert document["coords"]["5"] == {"dp": 0, "pp": 1, "cp": 0, "tp": 1}
    assert [g["axes"] for g in document["groups"]][:4] == [["tp"], ["cp"], ["pp"], ["dp"]]


def test_groups_and_places_are_those_of_the_job(tmp_path):
    found = library.places(job(tmp_path, MESH))
    assert found.coords == {rank: MESH.coords(rank) for rank in range(8)}
    single = {g.axes: (g.size, g.groups, g.example) for g in found.groups if len(g.axes) == 1}
    assert single == {(d,): (2, 4, MESH.line(0, [d])) for d in ("tp", "cp", "dp")}
    assert all(g.named for g in found.groups)


def test_one_rank_alone_tells_its_mesh(tmp_path):
    run = job(tmp_path, MESH)
    found = library.places(replace(run, ranks=run.ranks[:1]))
    assert (found.mesh.sizes, found.ranks.read) == (MESH.sizes, 1)
    assert found.ranks.missing == tuple(range(1, 8))


def test_groups_of_no_axis_say_so(tmp_path):
    run = job(tmp_path, MESH)
    odd = replace(run.groups[0], group=len(run.groups), ranks=(0, 7), descs=("embedding",), names=("e",))
    found = library.places(replace(run, groups=(*run.groups, odd)))
    last = found.groups[-1]
    assert (last.axes, last.example, last.descs) == ((), (0, 7), ("embedding",))
    assert ("no axis", "1 group of 2, as 0, 7 (embedding): unused in these traces") in mesh_lines(found)
    assert mesh_document_of(found)["groups"][-1]["axes"] == []


def test_a_contradicting_mesh_is_refused_with_the_groups(tracekit, ingested):
    done = tracekit("mesh", ingested("slow_compute"), "--mesh", "tp=4,cp=1,pp=2,dp=2", "--quiet")
    assert done.code == 2
    assert "the groups say --mesh tp=2,cp=2,pp=2,dp=2" in done.err
