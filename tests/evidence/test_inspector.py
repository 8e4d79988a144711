"""Records of NCCL's Inspector as the model of steps: the rank that comes last is slow, and gaps stay gaps."""

import json

import numpy as np
import pytest

from tests.evidence.inspector import WORLD, calls, lines, write
from tracekit import load, slowrank
from tracekit.analysis.triage.triage import triage
from tracekit.errors import InputError
from tracekit.matching.clock import Clocks


def asked(folder):
    return slowrank(load(sorted(folder.iterdir())))


@pytest.mark.parametrize("verbose", [True, False])
def test_the_rank_that_comes_last_is_named(tmp_path, verbose):
    finding = asked(write(tmp_path / "i", verbose=verbose))
    assert finding.verdict == "slow_rank"
    assert [suspect.rank for suspect in finding.suspects] == [5]
    assert finding.suspects[0].host == "node1"
    kinds = {row.kind for row in finding.quality}
    assert "nccl_inspector_input" in kinds
    assert ("placed_calls" in kinds) is not verbose


def test_equal_ranks_are_healthy(tmp_path):
    assert asked(write(tmp_path / "i", slow=None)).verdict == "healthy"


def test_a_rank_without_a_file_is_missing(tmp_path):
    finding = asked(write(tmp_path / "i", ranks=range(WORLD - 1)))
    assert finding.ranks.missing == (WORLD - 1,)
    assert [suspect.rank for suspect in finding.suspects] == [5]


def test_a_few_dropped_records_are_left_out(tmp_path):
    folder = write(tmp_path / "i")
    first = min(folder.iterdir())
    rows = first.read_text().splitlines()
    first.write_text("\n".join(rows[:40] + rows[42:]) + "\n")
    finding = asked(folder)
    assert [suspect.rank for suspect in finding.suspects] == [5]
    assert next(row.count for row in finding.quality if row.kind == "sparse_records") == 2


def test_many_dropped_records_are_refused(tmp_path):
    """Left out, they would hide where a rank was late."""
    folder = write(tmp_path / "i", slow=None, dropped=9)
    for number, path in enumerate(sorted(folder.iterdir())):
        rows = path.read_text().splitlines()
        path.write_text("\n".join(row for at, row in enumerate(rows) if at % 8 != number) + "\n")
    with pytest.raises(InputError, match="rings dropped too many"):
        asked(folder)


def test_processes_of_unknown_rank_are_refused(tmp_path):
    """Files of one tensor group alone: its places are no ranks of the job."""
    made = calls(5)
    for rank in (2, 3):
        own = [call for call in made[rank] if call[0] == "tp"]
        (tmp_path / f"{rank}.log").write_text(lines(rank, own) + lines(rank, [made[rank][-2]]))
    with pytest.raises(InputError, match="no communicator gives all processes ranks"):
        asked(tmp_path)


def test_containers_with_one_host_name_and_pid(tmp_path):
    for path in write(tmp_path / "i").iterdir():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        for row in rows:
            row["metadata"].update(hostname="localhost", pid=1)
        path.write_text("\n".join(map(json.dumps, rows)))
    assert [suspect.rank for suspect in asked(tmp_path / "i").suspects] == [5]


def test_records_written_at_the_end_are_refused(tmp_path):
    """Inspector's default writes at the end of the job, one communicator after the other."""
    for path in write(tmp_path / "i", verbose=False).iterdir():
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows.sort(key=lambda row: row["header"]["id"])
        path.write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(InputError, match="order of calls is lost"):
        asked(tmp_path / "i")


def test_damaged_lines_are_counted(tmp_path):
    folder = write(tmp_path / "i")
    first = min(folder.iterdir())
    row = json.loads(first.read_text().splitlines()[0])
    row["header"]["n_ranks"] = 1 << 40
    first.write_text(first.read_text() + '{"header": \n[1]\n' + json.dumps(row) + "\n")
    finding = asked(folder)
    assert next(row for row in finding.quality if row.kind == "damaged_records").count == 3
    assert [suspect.rank for suspect in finding.suspects] == [5]


def test_triage_asks_which_rank_is_slow(tmp_path):
    folder = write(tmp_path / "i")
    finding = triage(str(folder))
    assert finding.first.question == "slowrank"
    assert finding.first.verdict == "slow_rank"
    assert finding.first.evidence[0].kind == "nccl_inspector"


def test_an_infinite_number_is_a_damaged_line(tmp_path):
    folder = write(tmp_path / "i")
    first = min(folder.iterdir())
    rows = first.read_text().splitlines()
    row = json.loads(rows[40])
    row["coll_perf"]["coll_exec_time_us"] = float("inf")
    first.write_text("\n".join([*rows[:40], json.dumps(row), *rows[41:]]) + "\n")
    finding = asked(folder)
    assert [suspect.rank for suspect in finding.suspects] == [5]


def test_damaged_times_ask_for_a_bounded_correction():
    """A rate from two damaged ends, and a time a century off: the product is beyond an int64."""
    one = {0: 0}
    clocks = Clocks({0: 0.0}, {0: 1e3}, one, one, residual_ns=0.0)
    assert clocks.align(0, np.array([1 << 62])).tolist() == [0]
