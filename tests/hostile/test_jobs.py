"""Recordings of different jobs are never compared, and what is missing is never health."""

from itertools import combinations
from math import comb

import pytest

from tests.hostile.job import answer, documents, write
from tests.marks import quick_first
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.errors import InputError
from tracekit.ingest import load

DAY = 86_400e6  # µs
CULPRIT = 6
SUBSETS = ["".join(c) for size in (2, 3, 4) for c in combinations("01234567", size)]


def later(trace, by=3 * DAY):
    for event in trace["traceEvents"]:
        event["ts"] += by
    return trace


@pytest.mark.slow
def test_halves_of_two_jobs_are_refused(tmp_path):
    one, other = documents(), documents(302, "healthy")
    with pytest.raises(InputError, match=r"not recorded together.*1: ranks 0, 1, 2, 3; 2: ranks 4, 5, 6, 7"):
        answer(write(tmp_path, one[:4] + [later(t) for t in other[4:]]))


@pytest.mark.slow
def test_one_file_of_another_job_is_set_apart(tmp_path):
    one, other = documents(), documents(302, "healthy")
    found = answer(write(tmp_path, [*one[:3], other[3], *one[4:]]))
    assert [(r.rank, "another recording" in r.reason) for r in found.ranks.rejected] == [(3, True)]
    assert {s.rank for s in found.suspects} <= {CULPRIT}
    assert found.verdict != "healthy"


@pytest.mark.slow
def test_a_number_is_not_asked_for_twice(tmp_path):
    """Halves of two recordings in a folder beside another job's: `--job 1` chose the folder already."""
    one, other = documents(), documents(302, "healthy")
    mixed = write(tmp_path / "a", [*one[:4], *(later(t) for t in other[4:])])
    write(tmp_path / "b", [later(t, -3 * DAY) for t in documents(302, "healthy")])
    with pytest.raises(InputError, match="choose one with --job 1, or give the files"):
        answer(mixed)
    with pytest.raises(InputError, match=r"\); give the files of one job"):
        analyse(load([str(tmp_path)], job=1))


@pytest.mark.slow
def test_two_runs_in_two_folders_are_refused(tmp_path):
    monday = write(tmp_path / "monday", documents())
    tuesday = write(tmp_path / "tuesday", [later(t) for t in documents(302, "healthy")])
    with pytest.raises(
        InputError, match=r"2 jobs, .*1: folder .*monday, 8 ranks; 2: folder .*tuesday, 8 ranks"
    ):
        answer(tmp_path)
    assert answer(monday).verdict == "slow_rank"
    assert answer(tuesday).verdict in {"healthy", "inconclusive"}


@pytest.mark.slow
def test_a_clock_days_off_is_no_other_job(tmp_path):
    traces = documents()
    later(traces[2])
    found = answer(write(tmp_path, traces))
    assert ([s.rank for s in found.suspects], found.ranks.rejected) == ([CULPRIT], ())


@pytest.mark.parametrize("kept", quick_first(6, SUBSETS[::15] + [s for i, s in enumerate(SUBSETS) if i % 15]))
@pytest.mark.quick(1)
def test_any_ranks_give_the_culprit_or_leave_it_open(tmp_path, kept):
    found = answer(write(tmp_path, [t if str(r) in kept else None for r, t in enumerate(documents())]))
    assert found.verdict in {
        "slow_rank",
        "imbalance",
        "inconclusive",
    }  # alone in its stage, it is a long stage
    assert {s.rank for s in found.suspects} <= {CULPRIT}


def test_no_communication_at_all_is_said(tmp_path):
    traces = documents()
    for trace in traces:
        trace["traceEvents"] = [e for e in trace["traceEvents"] if "nccl" not in e["name"]]
        trace["traceEvents"] = [e for e in trace["traceEvents"] if "Collective name" not in e.get("args", {})]
    with pytest.raises(InputError, match="no communication"):
        answer(write(tmp_path, traces))


def test_ranks_without_a_common_step_blame_nobody(tmp_path):
    traces = documents()
    for rank, trace in enumerate(traces):
        count = len(trace["traceEvents"])
        trace["traceEvents"] = [
            e
            for place, e in enumerate(trace["traceEvents"])
            if e["name"].startswith("ProfilerStep") or 8 * place // count == rank
        ]
    found = answer(write(tmp_path, traces))
    assert (found.verdict, found.suspects) == ("inconclusive", ())


def test_the_subsets_are_all_of_them():
    assert len(SUBSETS) == sum(comb(8, size) for size in (2, 3, 4))
