"""A rank that posts a collective late, with as much work as its peers, leaves the job open."""

import pytest

from tests.slowrank.events import Timeline, write_run
from tracekit.analysis.slowrank.analyse import analyse

RANKS, STEPS = 4, 6
SIZED = {"dtype": "BFloat16", "in_nelems": 1 << 26, "out_nelems": 1 << 26}


def job(folder, late):
    """All ranks work 2 ms a step; rank `late(step)` does 0.5 ms of it before the collective that others do behind."""
    lines = [Timeline(rank) for rank in range(RANKS)]
    for step in range(STEPS):
        begins, handles = [line.at for line in lines], []
        for line in lines:
            line.compute(1500 if line.rank == late(step) else 1000)
            handles.append(line.post(0))
        end = max(h[0] for h in handles) + 200
        for line, handle, begin in zip(lines, handles, begins, strict=True):
            line.finish(handle, end, **SIZED)
            line.compute(500 if line.rank == late(step) else 1000)
            line.finish(line.post(0), begin + 2800, **SIZED)
            line.step(step, begin)
    return write_run(folder, lines, {0: tuple(range(RANKS))}, {0: "dp"}, RANKS)


@pytest.mark.parametrize(
    ("late", "verdict", "candidates"),
    [
        (lambda _: 2, "inconclusive", [2]),
        (lambda step: step % RANKS, "healthy", []),
        (lambda _: None, "healthy", []),
    ],
    ids=["always one", "each in turn", "nobody"],
)
def test_who_posts_late_in_most_steps_is_a_candidate(tmp_path, late, verdict, candidates):
    found = analyse(job(tmp_path, late))
    assert (found.verdict, [c.rank for c in found.candidates], found.suspects) == (verdict, candidates, ())
    assert ("comes last to collectives in most steps" in found.reason) == (verdict == "inconclusive")
