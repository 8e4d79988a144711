"""Every kind of fault on every axis: the culprit, its kind, and nobody else."""

import json
import random

import pytest

from tests.hang.simulate import Case, make
from tests.marks import quick_first
from tracekit.report.hang import hang_document, hang_text

MESH = {"tp": 2, "cp": 2, "pp": 2, "dp": 2}
KINDS = {
    "host_stall": {"host_stalled"},
    "skip": {"host_stalled"},
    "crash": {"missing_dump"},
    "device_unseen": {"device_stalled"},
    "wrong_size": {"mismatched_call"},
    "wrong_op": {"mismatched_call"},
}


@pytest.mark.parametrize("axis", ["tp", "cp", "pp", "dp"])
@pytest.mark.parametrize("fault", sorted(KINDS))
@pytest.mark.parametrize("seed", quick_first(1, range(3)))
@pytest.mark.quick(6)
def test_right_rank_and_kind(judge, fault, axis, seed):
    case = make(seed, fault, axis, MESH)
    finding = judge(case)
    assert [c.rank for c in finding.culprits] == [case.culprit], finding.reason
    assert finding.culprits[0].kind in KINDS[case.fault]
    assert case.culprit not in finding.victims
    assert finding.first_group is not None


@pytest.mark.parametrize("axis", ["tp", "cp", "dp"])
def test_recorded_starts_name_a_device_that_never_begins(judge, axis):
    case = make(3, "device_unstarted", axis, MESH, timed=True)
    finding = judge(case)
    assert [(c.rank, c.kind) for c in finding.culprits] == [(case.culprit, "device_stalled")]


def test_unknown_starts_name_no_device_that_never_begins(judge):
    finding = judge(make(3, "device_unstarted", "tp", MESH, timed=False))
    assert finding.verdict == "inconclusive"
    assert finding.culprits == ()
    assert "TORCH_NCCL_ENABLE_TIMING" in finding.reason


def test_healthy_job_is_none(judge):
    finding = judge(make(1, None, "tp", MESH))
    assert (finding.verdict, finding.culprits, finding.victims) == ("none", (), ())


def test_live_dumps_of_different_times_are_no_hang(judge):
    late = make(1, None, "tp", MESH)
    early = {
        r: {**d, "entries": d["entries"][: -30 * (r == 5) or None], "pg_status": {}}
        for r, d in late.dumps.items()
    }
    finding = judge(Case(MESH, None, "tp", None, False, early))
    assert finding.verdict == "none"
    assert "moving" in finding.reason
    assert finding.culprits == ()


def test_two_culprits_in_two_groups_are_both_named(judge):
    one, two = make(0, "host_stall", "tp", MESH), None
    for seed in range(1, 60):
        two = make(seed, "host_stall", "tp", MESH)
        if two.culprit // 2 != one.culprit // 2:
            break
    # a job in which both stopped: each rank as far as the shorter of the two runs let it come
    far = {r: min((one.dumps[r], two.dumps[r]), key=lambda d: len(d["entries"])) for r in one.dumps}
    finding = judge(Case(MESH, "host_stall", "tp", None, False, far))
    assert {c.rank for c in finding.culprits} <= {one.culprit, two.culprit}
    assert finding.culprits


def test_several_missing_dumps_that_fit_are_inconclusive_with_names(judge):
    case = make(0, "crash", "tp", {"tp": 4, "cp": 1, "pp": 1, "dp": 2}, drop=True)
    group = [r for r in range(8) if r // 4 == case.culprit // 4 and r != case.culprit]
    finding = judge(case, drop=group[:1])
    assert finding.verdict == "inconclusive"
    assert str(case.culprit) in finding.reason
    assert str(group[0]) in finding.reason


def test_mismatch_shows_both_sides(judge):
    case = make(5, "wrong_size", "tp", {"tp": 4, "cp": 1, "pp": 1, "dp": 2})
    finding = judge(case)
    assert finding.verdict == "mismatch"
    text = hang_text(finding)
    assert f"    rank {case.culprit}: " in text
    assert "as they made it" in text
    (culprit,) = finding.culprits
    assert sum(len(s.ranks) for s in culprit.sides) == 4


def test_document_has_contract_fields_and_one_verdict_line(judge):
    finding = judge(make(2, "host_stall", "tp", MESH))
    document = json.loads(json.dumps(hang_document(finding)))
    assert list(document) == [
        "schema", "ranks", "mesh", "verdict", "reason", "quality", "culprits", "first_group", "victims",
        "candidates", "to_decide", "open_calls", "waits",
    ]  # fmt: skip
    assert document["schema"] == "tracekit.hang/1"
    (culprit,) = document["culprits"]
    assert list(culprit) == [
        "rank", "host", "kind", "group", "collective", "last_enqueued", "group_enqueued", "last_completed", "stack",
    ]  # fmt: skip
    assert culprit["group"]["dim"] == "tp"
    assert culprit["last_enqueued"] == culprit["collective"]["seq"] - 1 < culprit["group_enqueued"]
    first, *rest = hang_text(finding).splitlines()
    assert str(culprit["rank"]) in first
    assert "host stalled" in first
    assert any("last recorded call of rank" in line for line in rest)


def test_late_ranks_of_dumps_with_durations_are_listed(judge):
    case = make(1, None, "tp", {"tp": 4, "cp": 1, "pp": 1, "dp": 2}, timed=True)
    for rank, dump in case.dumps.items():
        rng = random.Random(rank)
        for entry in dump["entries"]:
            entry["duration_ms"] = (0.2 if rank == 2 else 9.0) + rng.random()
    rows = [q for q in judge(case).quality if q.kind == "late_rank"]
    assert [q.detail.split()[1] for q in rows] == ["2"]
