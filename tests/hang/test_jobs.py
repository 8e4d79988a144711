"""Dumps of several jobs are never judged together."""

import pytest

from tests.hang.simulate import make
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps
from tracekit.errors import InputError, UsageError

MESH = {"tp": 2, "cp": 2, "pp": 2, "dp": 2}


def later(case, seconds, calls):
    """The dumps of another run: `seconds` later, and `calls` calls further in every group."""
    for rank, dump in case.dumps.items():
        entries = [
            {
                **e,
                "time_created_ns": e["time_created_ns"] + seconds * 10**9,
                "collective_seq_id": e["collective_seq_id"] + calls,
            }
            for e in dump["entries"]
        ]
        status = {k: {n: v + calls for n, v in s.items()} for k, s in dump["pg_status"].items()}
        case.dumps[rank] = {**dump, "entries": entries, "pg_status": status}
    return case


def kept(case, ranks):
    return type(case)(**{**vars(case), "dumps": {r: case.dumps[r] for r in ranks}})


def test_two_sets_of_dumps_are_refused(tmp_path):
    one, other = make(3, "host_stall", "tp", MESH), make(4, "host_stall", "cp", MESH)
    one.write(tmp_path / "monday")
    other.write(tmp_path / "tuesday")
    with pytest.raises(InputError, match=r"2 jobs.*1: folder .*monday, 16 ranks; 2: folder .*tuesday"):
        load_dumps([str(tmp_path)])
    assert {c.rank for c in analyse(load_dumps([str(tmp_path)], job=2)).culprits} == {other.culprit}
    with pytest.raises(UsageError, match="--job 3"):
        load_dumps([str(tmp_path)], job=3)


def test_copies_of_dumps_are_one_job(tmp_path):
    case = make(3, "host_stall", "tp", MESH)
    case.write(tmp_path / "a")
    case.write(tmp_path / "b")
    assert {c.rank for c in analyse(load_dumps([str(tmp_path)])).culprits} == {case.culprit}


def test_halves_of_two_jobs_are_refused(tmp_path):
    one, other = make(3, "host_stall", "tp", MESH), later(make(4, "host_stall", "cp", MESH), 600, 5000)
    kept(one, range(8)).write(tmp_path)
    kept(other, range(8, 16)).write(tmp_path)
    with pytest.raises(InputError, match=r"2 jobs.*written at .* UTC, 8 ranks"):
        load_dumps([str(tmp_path)])
    finding = analyse(load_dumps([str(tmp_path)], job=1))
    assert {c.rank for c in finding.culprits} <= {one.culprit, other.culprit}


def test_dumps_of_another_mesh_are_left_out(tmp_path):
    one, other = (
        make(3, "host_stall", "tp", MESH),
        make(4, "host_stall", "tp", {"tp": 2, "cp": 1, "pp": 2, "dp": 2}),
    )
    kept(one, range(15)).write(tmp_path)
    kept(other, [7]).write(tmp_path / "odd")
    found = load_dumps([str(tmp_path)])
    assert [r.path for r in found.rejected] == [str(tmp_path / "odd" / "nccl_trace_rank_7")]
    assert len(found.dumps) == 15


@pytest.mark.quick(5)
@pytest.mark.parametrize("calls", [-400, 0, 40])
@pytest.mark.parametrize("seed", [2, 3, 5, 12, 15])
def test_few_dumps_of_an_earlier_attempt_are_dropped(tmp_path, seed, calls):
    """A rank that left no dump this time may have one from an attempt before: it shows nothing of this one."""
    new = later(make(seed, "host_stall", "dp", MESH), 0, 500)
    old = later(make(seed + 5000, "wrong_size", "tp", MESH), -3600, 500 - calls)
    victims = [rank for rank in range(16) if rank != new.culprit and rank in old.dumps][:2]
    kept(new, set(new.dumps) - set(victims)).write(tmp_path)
    kept(old, victims).write(tmp_path)
    found = load_dumps([str(tmp_path)])
    assert len(found.rejected) == len(victims)
    assert "another attempt" in found.rejected[0].reason
    assert {c.rank for c in analyse(found).culprits} <= {new.culprit}


def test_a_rank_that_stopped_minutes_before_is_kept(tmp_path):
    """Its calls are those of its peers, and were issued with theirs."""
    case = make(3, "host_stall", "tp", MESH)
    for rank, dump in case.dumps.items():
        if rank != case.culprit:
            last = {
                **dump["entries"][-1],
                "time_created_ns": dump["entries"][-1]["time_created_ns"] + 600 * 10**9,
            }
            case.dumps[rank] = {**dump, "entries": [*dump["entries"][:-1], last]}
    case.write(tmp_path)
    assert {c.rank for c in analyse(load_dumps([str(tmp_path)])).culprits} == {case.culprit}
