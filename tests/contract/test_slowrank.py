"""`tracekit.slowrank/1`: names, types and allowed values of every field, and the relations between them."""

import json

import pytest

from tests.generator import Case, generate
from tests.generator.mesh import Mesh
from tests.marks import quick_but
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.causes import CAUSES as ENTRIES
from tracekit.causes import MECHANISMS
from tracekit.ingest import load
from tracekit.report.slowrank_json import dumps, slowrank_document

VERDICTS = {"healthy", "slow_rank", "slow_link", "imbalance", "inconclusive"}
CAUSES = {
    "gpu_compute", "cpu_launch", "cpu_contention", "host_stall", "dataloader", "network", "data_imbalance",
    "stage_imbalance", "memory", "host_copies", "unknown",
}  # fmt: skip
SOURCES = {"process_groups", "flag", "manifest", "flat_world"}
TOP = {
    "schema": str, "ranks": dict, "mesh": dict, "steps": dict, "verdict": str, "cause": str | None,
    "path": list, "suspects": list, "what_if": dict, "quality": list,
    "coverage": dict, "candidates": list, "to_decide": str | None, "to_record": list,
    "cures": list,
    "network_parts": list,
    "expert_waits": dict | None,
}  # fmt: skip
SUSPECT = {
    "rank": int, "host": str | None, "coords": dict, "lost_ms_per_step": float, "confidence": float,
    "lost_ms_low": float | None, "lost_ms_high": float | None, "steps": list, "cause": str, "evidence": list,
    "mechanisms": list, "causes": list,
}  # fmt: skip
MESHES = {
    "tp2 cp2 dp2": Mesh(("tp", "cp", "pp", "dp"), {"tp": 2, "cp": 2, "pp": 1, "dp": 2}),
    "tp2 pp2 dp2": Mesh(("tp", "cp", "dp", "pp"), {"tp": 2, "cp": 1, "pp": 2, "dp": 2}),
}
CASES = {
    "slow_compute": {"seed": 201, "mesh": MESHES["tp2 pp2 dp2"]},
    "slow_host": {"seed": 202, "mesh": MESHES["tp2 cp2 dp2"]},
    "slow_link": {"seed": 203, "mesh": MESHES["tp2 cp2 dp2"]},
    "long_stage": {"seed": 204, "mesh": MESHES["tp2 pp2 dp2"]},
    "doc_imbalance": {"seed": 205, "mesh": MESHES["tp2 cp2 dp2"]},
    "healthy": {"seed": 206, "mesh": MESHES["tp2 cp2 dp2"]},
}


def answer(case: Case, folder):
    case.write(folder)
    return json.loads(dumps(slowrank_document(analyse(load([str(folder)])))))


@pytest.fixture(scope="module", params=quick_but(["slow_host", "long_stage"], CASES))
def told(request, tmp_path_factory):
    """(case, JSON document) of each kind of verdict."""
    options = {
        "steps": 4,
        "missing": set(),
        "truncated": {},
        "host_name": False,
        "names": 3,
        "style": "megatron",
    }
    case = generate(kind=request.param, **CASES[request.param], **options)
    return case, answer(case, tmp_path_factory.mktemp("t"))


def typed(document, fields):
    """Every field of the contract is there, of its type (an integer will do for a float)."""
    for name, kind in fields.items():
        assert name in document
        value = document[name]
        allowed = {float: int | float, float | None: int | float | None}.get(kind, kind)
        assert isinstance(value, allowed), (name, value)
        assert not isinstance(value, bool), name


@pytest.mark.quick(2)
def test_the_top_level_has_every_field(told):
    _, document = told
    typed(document, TOP)
    assert document["schema"] == "tracekit.slowrank/1"
    assert set(document) - set(TOP) <= {"reason", "notes"}  # beside the contract, and no more
    assert next(iter(document)) == "schema"


def test_verdict_and_cause_are_of_the_lists(told):
    _, document = told
    assert document["verdict"] in VERDICTS
    assert (document["cause"] is None) == (document["verdict"] == "healthy")
    assert document["cause"] in CAUSES | {None}


def test_the_verdict_is_the_planted_one(told):
    case, document = told
    assert document["verdict"] == case.truth.verdict
    assert bool(document["suspects"]) == bool(case.truth.suspects)


def test_ranks_are_counted(told):
    case, document = told
    ranks = document["ranks"]
    typed(ranks, {"expected": int, "read": int, "missing": list, "rejected": list})
    assert (ranks["expected"], ranks["read"]) == (case.job.mesh.world, case.job.mesh.world)
    assert (ranks["missing"], ranks["rejected"]) == ([], [])


def test_the_mesh_has_all_four_sizes_in_its_order(told):
    case, document = told
    mesh = document["mesh"]
    assert sorted(mesh["order"]) == ["cp", "dp", "pp", "tp"]
    assert mesh["sizes"] == case.job.mesh.sizes
    assert list(mesh["sizes"]) == mesh["order"]
    assert mesh["source"] in SOURCES


def test_steps_are_numbers_in_order(told):
    case, document = told
    assert document["steps"]["analysed"] == sorted(set(document["steps"]["analysed"]))
    assert document["steps"]["analysed"]
    assert document["steps"]["median_ms"] == pytest.approx(sorted(case.truth.step_ms)[2], rel=0.2)


def test_the_path_descends_dp_pp_cp_tp(told):
    case, document = told
    sizes = case.job.mesh.sizes
    if not document["suspects"]:
        assert document["path"] == []
        return
    assert [p["dim"] for p in document["path"]] == [d for d in ("dp", "pp", "cp", "tp") if sizes[d] > 1]
    for level in document["path"]:
        typed(level, {"dim": str, "index": int, "lag_ms": float})
        assert 0 <= level["index"] < sizes[level["dim"]]
        assert level["lag_ms"] >= 0
        assert level["index"] == document["suspects"][0]["coords"][level["dim"]]


def test_suspects_are_whole_and_sorted_by_time_lost(told):
    case, document = told
    for suspect in document["suspects"]:
        typed(suspect, SUSPECT)
        assert suspect["host"] is None  # the traces name none
        assert suspect["coords"] == case.job.mesh.coords(suspect["rank"])
        assert suspect["cause"] in CAUSES
        assert 0 <= suspect["confidence"] <= 1
        assert suspect["steps"]
        assert set(suspect["steps"]) <= set(document["steps"]["analysed"])
        for row in suspect["evidence"]:
            typed(row, {"what": str, "value": float, "peers_median": float | None, "unit": str})
            assert set(row) == {"what", "value", "peers_median", "unit"}
        for row in suspect["causes"]:
            typed(row, {"name": str, "share": float})
            assert (row["named"] in (True, False), set(row)) == (True, {"name", "share", "named"})
        for row in suspect["mechanisms"]:
            typed(row, {"name": str, "share": float, "detail": str})
            assert row["named"] in (True, False)
            assert set(row) == {"name", "share", "detail", "named"}
            assert MECHANISMS[row["name"]] in ENTRIES[suspect["cause"]].mechanisms
        assert set(suspect) == set(SUSPECT)
    lost = [s["lost_ms_per_step"] for s in document["suspects"]]
    assert lost == sorted(lost, reverse=True)
    assert all(v > 0 for v in lost)
    assert len({s["rank"] for s in document["suspects"]}) == len(lost)


def test_what_if_is_the_step_with_and_without(told):
    _, document = told
    what_if = document["what_if"]
    assert list(what_if) == ["step_ms", "without_suspects_ms", "slowdown"]
    assert what_if["slowdown"] == pytest.approx(what_if["step_ms"] / what_if["without_suspects_ms"], rel=1e-3)
    if document["verdict"] == "healthy":
        assert what_if["slowdown"] == 1
    else:
        assert what_if["slowdown"] > 1.02  # below 2 % of the step is healthy


def test_quality_rows_name_their_kind(told):
    _, document = told
    for row in document["quality"]:
        assert isinstance(row["kind"], str)
        assert set(row) <= {"kind", "path", "count", "kept_events", "detail"}


@pytest.mark.slow
def test_a_host_is_named_where_the_input_tells(tmp_path):
    options = {"steps": 4, "missing": set(), "truncated": {}, "style": "megatron"}
    case = generate(kind="slow_compute", host_name=True, **CASES["slow_compute"], **options)
    (first, *_) = answer(case, tmp_path)["suspects"]
    assert first["host"] == f"node{first['rank'] // case.job.host_size}.cluster"


def test_a_rank_with_a_rejected_file_is_missing(tmp_path):
    options = {"steps": 4, "missing": set(), "truncated": {}, "style": "megatron", "names": 3, "gz": False}
    case = generate(kind="slow_compute", **CASES["slow_compute"], **options)
    lost = min(set(range(8)) - case.truth.suspects)
    paths = case.write(tmp_path / "t")
    paths[lost].write_bytes(b"<html>gone</html>")
    document = json.loads(dumps(slowrank_document(analyse(load([str(tmp_path / "t")])))))
    assert document["ranks"]["missing"] == [lost]
    assert [r["path"] for r in document["ranks"]["rejected"]] == [str(paths[lost])]
    assert set(document["ranks"]["rejected"][0]) == {"path", "reason"}
    assert (document["ranks"]["expected"], document["ranks"]["read"]) == (8, 7)


def test_a_truncated_file_is_read_and_has_a_row(tmp_path):
    options = {"steps": 5, "missing": set(), "style": "megatron", "cpu_first": False, "metadata_last": False}
    base = generate(kind="slow_compute", **CASES["slow_compute"], truncated={}, **options)
    lost = min(set(range(8)) - base.truth.suspects)
    case = generate(kind="slow_compute", **CASES["slow_compute"], truncated={lost: 0.9}, **options)
    document = answer(case, tmp_path)
    assert (document["ranks"]["read"], document["ranks"]["missing"]) == (8, [])
    (row,) = [q for q in document["quality"] if q["kind"] == "truncated_file"]
    assert isinstance(row["kept_events"], int)
    assert isinstance(row["path"], str)


def test_numbers_are_numbers_json_knows(tmp_path):
    text = dumps({"a": 1.5})
    assert json.loads(text) == {"a": 1.5}
    with pytest.raises(ValueError, match="JSON"):
        dumps({"a": float("nan")})
