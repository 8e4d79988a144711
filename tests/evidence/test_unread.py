"""Counters that lie beside traces and are not given: one line says which, and the command that would use them."""

import gzip
import json
import os
import shlex

import pytest

from tests.cli.program import Program
from tests.generator import generate
from tracekit.analysis.triage.unread import unread_counters

COUNTERS = {
    "dcgm.prom": b'# TYPE DCGM_FI_DEV_SM_CLOCK gauge\nDCGM_FI_DEV_SM_CLOCK{gpu="0",Hostname="node01"} 1980\n',
    "smi.csv": b"timestamp, index, clocks.sm [MHz], temperature.gpu\n2026/11/18 04:00:00.000, 0, 1980 MHz, 50\n",
    "dmesg.txt": b"[1.0] usb 1-1\n" * 9000
    + b"[2.0] NVRM: Xid (PCI:0000:07:00): 79, GPU has fallen off the bus.\n",
}


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Four ranks, one of them slow, with counters and other files beside their traces."""
    folder = tmp_path_factory.mktemp("job") / "my traces"
    made = generate(101, kind="slow_compute", world=4, steps=4, missing=set(), truncated={}, host_name=False)
    made.write(folder)
    for name, text in COUNTERS.items():
        (folder / name).write_bytes(text)
    (folder / "notes.txt").write_text("node03 was replaced\n")
    (folder / "table.csv").write_text("step,loss\n1,2.5\n")
    return folder


def traces_of(job):
    return sorted(str(path) for path in job.glob("*.json*"))


@pytest.fixture
def tracekit(monkeypatch, capfd):
    return Program(monkeypatch, capfd)


def of(job, names=COUNTERS):
    return tuple(sorted(str(job / name) for name in names))


def test_files_among_and_beside_traces_are_the_same(job):
    traces = traces_of(job)
    assert len(traces) == 4
    for given in ([str(job)], traces, traces[:1], [str(job / "*.json*")]):
        assert unread_counters(given).files == of(job)
    assert unread_counters(str(job), of(job)) is None
    assert unread_counters(str(job), of(job, ["smi.csv"])).files == of(job, ["dcgm.prom", "dmesg.txt"])


@pytest.mark.parametrize("count", [0, 1, 4])
def test_the_command_reads_all_of_them(job, tracekit, count):
    """Of the folder, of one file, and of so many files that their folder is shorter."""
    traces = traces_of(job)[:count] or [str(job)]
    program, command, *words = shlex.split(unread_counters(traces).command)
    assert (program, command) == ("tracekit", "triage")
    found = json.loads(tracekit(command, *words, "--json", "-", "--quiet").out)
    assert {file["path"] for file in found["found"] if file["kind"] in ("counters", "job_log")} == set(
        of(job)
    )
    assert unread_counters(words, of(job)) is None


def test_slowrank_says_so_in_one_line(job, tracekit):
    bare = [traces_of(job)[0]]
    done = tracekit("slowrank", job, "--quiet")
    hints = [line for line in done.out.splitlines() if "counters_beside" in line]
    assert len(hints) == 1
    assert f"`tracekit triage '{job}'` holds them against this answer" in hints[0]
    (row,) = (
        row
        for row in json.loads(tracekit("slowrank", *bare, "--json", "-", "--quiet").out)["quality"]
        if row["kind"] == "counters_beside"
    )
    assert row["count"] == 3


def test_triage_says_so_of_what_it_did_not_read(job, tracekit):
    traces = traces_of(job)
    assert f"collect: tracekit triage '{job}'" in tracekit("triage", *traces, "--quiet").out
    assert "lies beside" not in tracekit("triage", job, "--quiet").out


def test_odd_files_beside_traces_are_left_alone(tmp_path):
    (tmp_path / "rank0.json").write_text("{}")
    packed = gzip.compress(COUNTERS["dcgm.prom"])
    (tmp_path / "whole.prom.gz").write_bytes(packed)
    (tmp_path / "cut.gz").write_bytes(packed[:20])
    (tmp_path / "damaged.gz").write_bytes(packed[:15] + bytes(10) + packed[25:])
    (tmp_path / "damaged.zst").write_bytes(b"\x28\xb5\x2f\xfd" + bytes(9))
    (tmp_path / "database").write_bytes(b"SQLite format 3\0" + bytes(100))
    (tmp_path / "empty").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.prom")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert unread_counters(str(tmp_path)).files == (str(tmp_path / "whole.prom.gz"),)


@pytest.mark.parametrize("given", [["nowhere"], [""], [], ["memory://run/traces"]])
def test_inputs_without_files_give_no_hint(given):
    assert unread_counters(given) is None
