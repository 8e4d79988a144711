"""Each version and launcher of a watchdog line tells the same frontier."""

import gzip
import json
import re

import pytest

from tests.evidence.judged import of_text, ranks
from tests.evidence.stuck_job import states
from tests.evidence.watchdog import LAUNCHERS, NAMED, VERSIONS, Spelling, log, logs
from tests.hang import simulate
from tests.marks import quick_first
from tests.reports.logs import waiting
from tracekit.evidence.logs import read_log
from tracekit.files import source
from tracekit.files.source import Source

MESH = {"tp": 2, "cp": 1, "pp": 1, "dp": 4}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """A job that hangs without messages."""
    folder = tmp_path_factory.mktemp("job")
    return states(simulate.make(3, "host_stall", "tp", MESH).write(folder))


def read(path, data):
    path.write_bytes(data)
    return read_log(Source(str(path), str(path), len(data)))


def frontier(marks):
    """Groups of each rank with their last enqueued, last completed and timed-out call."""
    return {
        rank: {key: (m.place, m.enqueued, m.completed, m.work and m.work.seq) for key, m in of_rank.items()}
        for rank, of_rank in marks.items()
    }


def truth(job):
    """The same, as the dumps tell it."""
    found = {}
    for rank, state in job.items():
        kept = {g.name: g for g in (state.groups[0], *state.open_groups)}
        found[rank] = {
            (g.name, g.desc): (
                g.place,
                max(g.enqueued, 0),
                max(g.completed, 0),
                g.open.seq if g.open else None,
            )
            for g in kept.values()
        }
    return found


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("version", quick_first(2, reversed(NAMED)))
def test_launchers_change_no_frontier(tmp_path, job, version, launcher):
    text = log(job, Spelling(version, launcher, colours=launcher == "srun"))
    assert frontier(read(tmp_path / "a", text.encode()).marks) == truth(job)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_version_is_a_watchdog_log(tmp_path, job, version):
    found = read(tmp_path / "a", log(job, Spelling(version)).encode())
    assert found.watchdog
    assert found.timed_out is not None


def test_one_file_or_a_file_a_rank(tmp_path, job):
    parts = logs(job, Spelling())
    found = {}
    for rank, text in parts.items():
        found |= read(tmp_path / f"rank{rank}.log", text.encode()).marks
    assert frontier(found) == truth(job)


def test_compressed_logs_are_read(tmp_path, job):
    data = log(job, Spelling()).encode()
    assert frontier(read(tmp_path / "a.gz", gzip.compress(data)).marks) == truth(job)
    cut = read(tmp_path / "b.gz", gzip.compress(data)[:-40])
    assert cut.damage is not None
    assert set(cut.marks) <= set(job)


def test_a_log_of_one_repeated_line_is_read(tmp_path, monkeypatch, job):
    """It shrinks further than traces do, and is read in constant memory."""
    monkeypatch.setattr(source, "LEAST_EXPANDED", 1 << 20)
    data = b"2026-11-27 03:00:00 [rank0]: heartbeat ok\n" * 100_000 + log(job, Spelling()).encode()
    packed = gzip.compress(data)
    assert len(data) > source.MOST_EXPANSION * len(packed)
    assert frontier(read(tmp_path / "a.gz", packed).marks) == truth(job)


def test_lines_kept_by_docker(tmp_path, job):
    lines = log(job, Spelling(colours=True)).splitlines()
    kept = "".join(
        json.dumps({"log": f"{li}\n", "stream": "stderr", "time": "2026-11-18T04:00:00Z"}) + "\n"
        for li in lines
    )
    kept = kept.replace('": "', '":"').replace('", "', '","')
    assert frontier(read(tmp_path / "a", kept.encode()).marks) == truth(job)


def test_lines_that_lost_their_newlines(tmp_path, job):
    text = log(job, Spelling(), noise=0).replace(".\n[rank", ".[rank").replace("down.\n", "down.")
    assert frontier(read(tmp_path / "a", text.encode()).marks) == truth(job)


def test_lines_wrapped_by_a_terminal(tmp_path, job):
    rows = []
    for line in log(job, Spelling(), noise=0).splitlines():
        rows += [line[at : at + 160] for at in range(0, len(line), 160)]
    found = read(tmp_path / "a", "\n".join(rows).encode() + b"\n")
    waited = {rank for rank, marks in found.marks.items() if any(mark.work for mark in marks.values())}
    assert waited == {rank for rank, state in job.items() if state.open_groups}


def test_a_cut_number_is_not_believed(tmp_path):
    line = "[rank0]:[E1118 04:00:00.5 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 0]  failure detected"
    line += (
        " by watchdog at work sequence id: 2635 PG status: last enqueued work: 2640, last completed work: 26"
    )
    mark = read(tmp_path / "a", line.encode()).marks
    assert mark == {}
    assert read(tmp_path / "b", line.encode() + b"34\n").marks[0]["0", "default_pg"].completed == 2634


def test_numbers_of_an_earlier_attempt_are_forgotten(tmp_path, job):
    first = log(job, Spelling()).replace("last enqueued work: ", "last enqueued work: 9")
    first = first.replace("Last enqueued NCCL work: ", "Last enqueued NCCL work: 9")
    found = read(tmp_path / "a", (first + log(job, Spelling())).encode())
    assert found.attempts == 2
    assert frontier(found.marks) == truth(job)


@pytest.mark.parametrize("version", NAMED)
def test_ranks_follow_from_the_group_of_all(tmp_path, version):
    """Builds of torch with glog write no `[rankN]:`; the place in the default group is the rank."""
    made = {rank: waiting(4, 374, late=(2,))[rank] for rank in range(4)}
    text = re.sub(r"\[rank\d+\]:", "", log(made, Spelling(version)))
    found = read(tmp_path / "job.log", text.encode())
    assert found.attempts == 1
    assert {rank: next(iter(marks.values())).enqueued for rank, marks in found.marks.items()} == {
        0: 374, 1: 374, 2: 373, 3: 374
    }  # fmt: skip
    assert ranks(of_text(tmp_path, text)) == [2]


def test_a_group_without_members_is_no_job_that_moves(tmp_path):
    """A call of a pair timed out, and its ranks are unknown: the sound group of all ranks excuses nothing."""
    whole = "[PG ID 0 PG GUID 0(default_pg) Rank {0}] "
    sized = whole + "ProcessGroupNCCL initialization options: size: 4, global rank: {0}\n"
    sound = whole + "Received a dump signal. Last enqueued NCCL work: 9, last completed "
    work = "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, "
    work += "NumelOut=8, Timeout(ms)=600000) ran for 600005 milliseconds before timing out.\n"
    late = (
        "[PG ID 1 PG GUID 5(TENSOR) Rank 1] failure detected by watchdog at work sequence id: 7 PG status: "
    )
    late += "last enqueued "
    text = "".join(sized.format(rank) + sound.format(rank) + "NCCL work: 9.\n" for rank in range(4))
    finding = of_text(tmp_path, text + work + late + "work: 7, last completed work: 6\n")
    assert finding.verdict == "inconclusive"
    assert "members" in finding.reason


SHAPED = (
    "[E ProcessGroupNCCL.cpp:828] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=77, "
    "OpType={1}, TensorShape=[{2}], Timeout(ms)=1800000) ran for 1801863 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(("op", "shape"), [("BROADCAST", "10, 3"), ("ALLREDUCE", "12, 3")])
def test_shapes_of_torch_1_and_2_0_are_read(tmp_path, op, shape):
    """Where a work keeps its output, as in a debugged or a blocking job, the line bears its shape."""
    calls = [("ALLREDUCE", "10, 3")] * 4
    calls[2] = op, shape
    text = "".join(SHAPED.format(rank, *call) for rank, call in enumerate(calls))
    assert ranks(of_text(tmp_path, text, expected=4)) == [2]
    lone = text.splitlines(keepends=True)[1].replace("Watchdog caught", "Caught")
    (tmp_path / "lone").mkdir()
    assert "only rank 1 left lines" in of_text(tmp_path / "lone", lone).reason
