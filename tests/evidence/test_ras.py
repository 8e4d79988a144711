"""Answers of `ncclras`: counts are the frontier; what they do not tell stays open."""

import json
from dataclasses import replace

import pytest

from tests.evidence.judged import answer, ranks, record
from tests.evidence.other_channels import ras_json, ras_text
from tests.evidence.stuck_job import states
from tests.evidence.watchdog import Spelling
from tests.hang import simulate
from tracekit.analysis.hang.witnesses.judge import judge_evidence
from tracekit.evidence.bundle import Bundle
from tracekit.evidence.ras import is_ras, read_ras
from tracekit.evidence.ras_counts import moves

MESH = {"tp": 2, "cp": 1, "pp": 1, "dp": 4}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A host that stalled in a tensor-parallel group."""
    folder = tmp_path_factory.mktemp("job")
    case = simulate.make(3, "host_stall", "tp", MESH)
    return case.culprit, states(case.write(folder))


def judged(*texts):
    reports = tuple(read_ras(f"r{n}", text.encode()) for n, text in enumerate(texts))
    return judge_evidence(Bundle(ras=reports))[0]


def test_counts_that_stand_leave_the_late_rank(job):
    """RAS counts no messages: the rank may wait in one of another communicator."""
    culprit, state = job
    finding = judged(ras_json(state), ras_json(state, "2026-11-18 04:01:00"))
    assert finding.culprits == ()
    assert finding.candidates == (culprit,)
    assert "messages" in finding.reason


def test_one_answer_names_nobody(job):
    culprit, state = job
    finding = judged(ras_json(state))
    assert finding.verdict == "inconclusive"
    assert culprit in finding.candidates
    assert "second time" in finding.to_decide


def test_counts_that_grow_are_no_hang(job):
    _, state = job
    later = json.loads(ras_json(state))
    for communicator in later["communicators"]:
        for rank in communicator["ranks"]:
            rank["collective_counts"]["AllReduce"] += 5
    finding = judged(ras_json(state), json.dumps(later))
    assert finding.culprits == ()
    assert "moves" in finding.reason


@pytest.mark.parametrize(("hour", "left_out"), [("13:10", True), ("13:50", False)])
def test_an_answer_from_before_the_hang_weakens_no_log(tmp_path, hour, left_out):
    """The stalled call began at about 13:43 by the log; before it, ranks were a call apart, as in a job that moves."""
    case = simulate.make(9, "host_stall", "tp", MESH)
    places = record(tmp_path, case.write(tmp_path / "fr"), Spelling("2.8"))
    found = states(places["dump"])
    for rank, state in found.items():
        for group in state.groups:
            group.counts = {kind: max(0, n - 3 - rank % 2) for kind, n in group.counts.items()}
    for path in places["ras"].iterdir():
        path.unlink()
    (places["ras"] / "early").write_text(ras_json(found, f"2026-11-18 {hour}:00"))
    alone, both = (answer(places, channels) for channels in (("log",), ("log", "ras")))
    assert ranks(alone) == [case.culprit]
    assert (ranks(both) == ranks(alone)) is left_out
    assert ("early_ras" in {row.kind for row in both.quality}) is left_out


def test_agreement_is_no_health(job):
    _, state = job
    agreed = json.loads(ras_json(state))
    for communicator in agreed["communicators"]:
        for rank in communicator["ranks"]:
            rank["collective_counts"] = dict.fromkeys(rank["collective_counts"], 7)
    finding = judged(json.dumps(agreed), json.dumps(agreed))
    assert finding.verdict == "inconclusive"
    assert finding.culprits == ()


def test_a_silent_process_is_named(job):
    _, state = job
    gone = {rank: replace(s, groups=[], alive=False) if rank == 5 else s for rank, s in state.items()}
    finding = judged(ras_json(gone, dead=True))
    assert [(c.rank, c.kind) for c in finding.culprits] == [(5, "died")]


@pytest.mark.parametrize("by_kind", [False, True])
def test_text_lists_only_what_differs(job, by_kind):
    _, state = job
    text = ras_text(state, by_kind=by_kind)
    assert is_ras(text.encode())
    report = read_ras("a", text.encode())
    whole = read_ras("b", ras_json(state).encode())
    assert report.world == whole.world == len(state)
    differing = {c.size for c in whole.communicators if len(set(c.launched().values())) > 1}
    assert {c.size for c in report.communicators} == differing


def test_moving_needs_two_answers(job):
    _, state = job
    report = read_ras("a", ras_json(state).encode())
    assert moves([report]) is None
    assert moves([report, report]) is False


@pytest.mark.parametrize(
    "text",
    [
        '{"nccl_version": "2.29.1", "communicators": [1, null, {"size": -3}, {"size": 4, "ranks": [{"rank": 9}, 7]}]}',
        '{"nccl_version": "2.29.1", "communicators": []}',
        "Job summary\n===========\n\n 9 9 9\nCommunicators... (0.0s)\n#9-9 (ab) MISMATCH\n  Rank 99999999 -- GPU\n\n",
    ],
)
def test_damaged_answers_are_harmless(text):
    report = read_ras("a", text.encode())
    assert judge_evidence(Bundle(ras=(report,)))[0].culprits == ()
