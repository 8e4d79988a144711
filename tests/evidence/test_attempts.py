"""Logs of earlier attempts of a job, in one file, in several, and in the folders of torchrun."""

import pytest

from tests.evidence.judged import ranks
from tests.evidence.watchdog import Spelling, log
from tests.reports.logs import waiting
from tracekit.analysis.hang.witnesses.judge import judge_evidence
from tracekit.evidence.gather import load_evidence


def attempt(late, seq, hour=13, world=4):
    """The log of an attempt in which a rank did not come to a call."""
    return log(waiting(world, seq, late=(late,)), Spelling("2.8")).replace(" 13:53", f" {hour}:53")


def judged(tmp_path, files):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return judge_evidence(load_evidence([str(tmp_path)]))[0]


@pytest.mark.parametrize("seqs", [(50, 90), (90, 50)])
def test_a_later_attempt_in_one_log_counts(tmp_path, seqs):
    finding = judged(tmp_path, {"job.log": attempt(1, seqs[0]) + attempt(2, seqs[1], hour=18)})
    assert ranks(finding) == [2]
    assert [q.count for q in finding.quality if q.kind == "restarts"] == [1]


@pytest.mark.parametrize("seqs", [(50, 90), (90, 50)])
def test_a_later_attempt_in_another_log_counts(tmp_path, seqs):
    """The first one also holds a death, which the second one lived without."""
    died = (
        "[rank1]: Traceback (most recent call last):\n[rank1]: torch.OutOfMemoryError: CUDA out of memory.\n"
    )
    files = {"slurm-9.out": died + attempt(1, seqs[0]), "slurm-7.out": attempt(2, seqs[1], hour=18)}
    finding = judged(tmp_path, files)
    assert ranks(finding) == [2], finding.reason
    (row,) = [q for q in finding.quality if q.kind == "restarts"]
    assert row.path.endswith("slurm-9.out")


def per_rank(text, world=4):
    return [
        "".join(f"{line}\n" for line in text.splitlines() if line.startswith(f"[rank{r}]"))
        for r in range(world)
    ]


def test_the_last_attempt_of_torchrun_counts(tmp_path):
    files = {
        f"none_ab/attempt_{number}/{rank}/stderr.log": part or "began\n"
        for number, text in enumerate([attempt(1, 50), attempt(2, 90)])
        for rank, part in enumerate(per_rank(text))
    }
    finding = judged(tmp_path, files)
    assert [(c.rank, c.kind) for c in finding.culprits] == [(2, "host_stalled")]


CLOSED = "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.1]:1\n"
MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\n"
RAISED = 'Traceback (most recent call last):\n  File "/job/t.py", line 3, in f\n'


@pytest.mark.parametrize(("hosts", "named"), [(1, [1]), (2, [])])
def test_folders_of_two_agents_are_no_ranks(tmp_path, hosts, named):
    """They are named after local ranks: of two hosts either may be meant."""
    files = {
        f"none_{host}/attempt_0/{local}/stderr.log": RAISED
        + (MEMORY if (host, local) == (hosts - 1, 1) else CLOSED)
        for host in range(hosts)
        for local in range(4)
    }
    finding = judged(tmp_path, files)
    assert ranks(finding) == named, finding.reason
    assert "OutOfMemory" in finding.reason + str(finding.culprits)
