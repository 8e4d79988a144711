"""Real hangs on Gloo: dumps as torch writes them, pickle and JSON."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.hang.gloo_job import CULPRIT
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps

KINDS = {
    "host_stall": "host_stalled",
    "skip": "host_stalled",
    "wrong_size": "mismatched_call",
    "crash": "missing_dump",
}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_real_gloo_hang(tmp_path, kind):
    folder = tmp_path / "pickle"
    folder.mkdir()
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    script = str(Path(__file__).with_name("gloo_job.py"))
    jobs = [
        subprocess.Popen(
            [sys.executable, script, str(r), str(port), str(folder), kind], stderr=subprocess.DEVNULL
        )
        for r in range(4)
    ]
    for job in jobs:
        job.wait(timeout=90)
    finding = analyse(load_dumps([str(folder)]))
    assert [(c.rank, c.kind) for c in finding.culprits] == [(CULPRIT, KINDS[kind])], finding.reason
    if kind == "host_stall":  # the JSON form lists no members: the names alone must do
        plain = analyse(load_dumps([str(tmp_path / "json")]))
        assert {c.rank for c in plain.culprits} <= {CULPRIT}
        assert any(q.kind == "unknown_members" for q in plain.quality)
