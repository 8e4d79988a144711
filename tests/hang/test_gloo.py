"""Real hangs on Gloo: dumps as torch writes them, pickle and JSON."""

import pytest

from tests.hang.gloo_job import CULPRIT, main
from tests.marks import quick_first
from tests.ranks.patience import patience
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps

KINDS = {
    "host_stall": "host_stalled",
    "skip": "host_stalled",
    "wrong_size": "mismatched_call",
    "crash": "missing_dump",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick_first(1, KINDS))
def test_real_gloo_hang(ranks, tmp_path, kind):
    folder = tmp_path / "pickle"
    folder.mkdir()
    stall_s = patience(1.5)
    jobs = [ranks.start(main, rank, tmp_path / "store", folder, kind, stall_s) for rank in range(4)]
    for job in jobs:
        job.wait()
    finding = analyse(load_dumps([str(folder)]))
    assert [(c.rank, c.kind) for c in finding.culprits] == [(CULPRIT, KINDS[kind])], finding.reason
    if kind == "host_stall":  # the JSON form lists no members: the names alone must do
        plain = analyse(load_dumps([str(tmp_path / "json")]))
        assert {c.rank for c in plain.culprits} <= {CULPRIT}
        assert any(q.kind == "unknown_members" for q in plain.quality)
