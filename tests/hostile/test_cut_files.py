"""A trace that is cut off: Kineto writes the host's events first, so that a cut first loses the device's."""

import json

import pytest

from tests.hostile.job import answer, documents, write
from tests.marks import quick_first

HOST = {"cpu_op", "user_annotation"}
CULPRIT, INNOCENT = 6, 2


def cut_at(folder, rank, share):
    """Write the job with the file of `rank` in Kineto's order and cut at `share` of its text."""
    traces = documents()
    mine = traces[rank]
    mine["traceEvents"].sort(key=lambda e: e.get("cat") not in HOST)
    traces[rank] = None
    write(folder, traces)
    text = json.dumps(mine)
    (folder / f"cut{rank}.json").write_text(text[: int(len(text) * share)])
    return answer(folder)


@pytest.mark.parametrize("rank", [CULPRIT, INNOCENT])
@pytest.mark.parametrize("share", quick_first(2, [0.1, 0.9, *(n / 10 for n in range(2, 9)), 0.99]))
@pytest.mark.quick(1)
def test_a_cut_file_blames_nobody_else(tmp_path, rank, share):
    found = cut_at(tmp_path, rank, share)
    assert {s.rank for s in found.suspects} <= {CULPRIT}
    assert found.verdict != "healthy"
    named = [c for c in found.candidates if c.rank == INNOCENT]
    assert not named
    if not found.ranks.rejected:
        assert any(q.kind == "truncated_file" for q in found.quality)


def test_a_rank_without_its_device_does_not_count(tmp_path):
    found = cut_at(tmp_path, INNOCENT, 0.2)
    assert [r.rank for r in found.ranks.rejected] == [INNOCENT]
    assert "it holds no kernels" in found.ranks.rejected[0].reason
    assert [s.rank for s in found.suspects] == [CULPRIT]


@pytest.mark.slow
@pytest.mark.parametrize("every", quick_first(1, [3, 1]))
def test_kernels_without_durations_show_no_device(tmp_path, every):
    """Durations that are repaired to zero would make a rank idle, as if its host had stalled."""
    traces = documents()
    kernels = [e for e in traces[INNOCENT]["traceEvents"] if e.get("cat") == "kernel"]
    for kernel in kernels[::every]:
        kernel["dur"] *= -1
    found = answer(write(tmp_path, traces))
    assert [r.rank for r in found.ranks.rejected] == [INNOCENT]
    assert [s.rank for s in found.suspects] == [CULPRIT]
