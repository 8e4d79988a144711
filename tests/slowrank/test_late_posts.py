"""A rank that posts a collective late, with as much work as its peers, leaves the job open."""

import pytest

from tests.slowrank.events import Timeline, write_run
from tracekit.analysis.slowrank.analyse import analyse

RANKS, STEPS = 4, 6
SIZED = {"dtype": "BFloat16", "in_nelems": 1 << 26, "out_nelems": 1 << 26}


def job(folder, late, steps=STEPS):
    """All ranks work 2 ms a step; rank `late(step)` does 0.5 ms of it before the collective that others do behind."""
    lines = [Timeline(rank) for rank in range(RANKS)]
    for step in range(steps):
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
    assert ("is the last to join collectives in most steps" in found.reason) == (verdict == "inconclusive")


def test_two_steps_of_three_may_be_chance(tmp_path):
    """One of four replicas is the last one in two of three steps: data dealt again does that in every sixth job."""
    found = analyse(job(tmp_path, lambda step: 2 if step else 1, steps=3))
    assert (found.verdict, found.candidates) == ("healthy", ())


def test_a_rank_that_fell_behind_once_counts_once(tmp_path):
    """Ranks 2 and 6 gather 100 µs in sight, the others beside compute; rank 2 has done 30 µs more from the start."""
    lines = [Timeline(rank) for rank in range(8)]
    groups = {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)} | {2 + i: (i, i + 4) for i in range(4)}
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for turn in range(10):
            handles = []
            for line in lines:
                first = 30 if (turn, line.rank) == (0, 2) else 0
                if line.rank in {2, 6}:
                    line.finish(line.post(2 + line.rank % 4, "broadcast"), line.at + 100)
                else:
                    line.beside(2 + line.rank % 4, 100, step * 10 + turn)
                line.compute(200 + first - (30 if (turn, line.rank) == (9, 2) else 0))
                handles.append((line, line.post(line.rank // 4)))
            end = max(h[0] for _, h in handles) + 20
            for line, handle in handles:
                line.finish(handle, end, **SIZED)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    found = analyse(write_run(tmp_path, lines, groups, {n: "tp" if n < 2 else "dp" for n in groups}, 8))
    assert (found.verdict, found.candidates) == ("healthy", ())
