"""Of ranks that recorded no compared step whole nothing is known: a job with such ranks is not healthy."""

import pytest

from tests.slowrank.events import Timeline, write_run
from tracekit.analysis.slowrank.analyse import analyse

SIZED = {"dtype": "BFloat16", "in_nelems": 1 << 24, "out_nelems": 1 << 24}
RANKS, STEPS, CALLS = 4, 4, 6


def job(folder, cut):
    """Steps of a call of all four ranks, of which the ranks `cut` have no record, and five of both pairs."""
    lines = [Timeline(rank) for rank in range(RANKS)]
    for step in range(STEPS):
        begin = [line.at for line in lines]
        for call in range(CALLS):
            for line in lines:
                line.compute(500 + (line.rank * 7 + step * 5 + call * 3) % 11)
            everybody = call == 0
            handles = [line.post(2 if everybody else line.rank // 2) for line in lines]
            end = max(begun for begun, *_ in handles) + 100
            for line, handle in zip(lines, handles, strict=True):
                if everybody and line.rank in cut:
                    line.at = end
                else:
                    line.finish(handle, end, **SIZED, stream=7)
        for line in lines:
            line.step(step, begin[line.rank])
    groups = {0: (0, 1), 1: (2, 3), 2: tuple(range(RANKS))}
    return write_run(folder, lines, groups, dict.fromkeys(groups, "dp"), RANKS)


@pytest.mark.parametrize(("cut", "verdict"), [((), "healthy"), ((2, 3), "inconclusive")])
def test_ranks_without_a_whole_step_are_not_healthy(tmp_path, cut, verdict):
    found = analyse(job(tmp_path, cut))
    assert (found.verdict, found.suspects) == (verdict, ())
    assert [(c.rank, c.lost_ms_low) for c in found.candidates] == [(rank, 0.0) for rank in cut]
    if cut:
        assert "ranks 2, 3 recorded none of the compared steps whole" in found.reason
        assert "record three whole steps or more" in found.to_decide
    rows = [q.detail for q in found.quality if q.kind == "unmeasured_ranks"]
    assert len(rows) == bool(cut)
    assert not cut or "ranks 2, 3" in rows[0] or "ranks 2-3" in rows[0]
