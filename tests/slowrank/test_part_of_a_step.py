"""Captures without a step in common: repetitions are compared, and a part of a step proves nothing."""

import pytest

from tests.slowrank.events import Timeline, write_run
from tracekit.analysis.slowrank.analyse import analyse

OPS = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all")
RANKS, APART_US, MS = 6, 1e6, 1e6
SLOW = {2: 1.3}


def job(folder, slow, kept=lambda rank, ns: True):
    """Two captures of unlike work a second apart on two groups; each rank numbers its steps by itself."""
    lines = [Timeline(rank) for rank in range(RANKS)]
    for window, order in enumerate((OPS[::-1], OPS)):
        begins = [line.at + APART_US * window for line in lines]
        for line, begin in zip(lines, begins, strict=True):
            line.at = begin
        for layer, op in enumerate(
            op for n, op in zip((5, 4, 3, 2, 1), order, strict=True) for _ in range(n)
        ):
            handles = []
            for line in lines:
                noise = 1 + 0.002 * ((line.rank * 7 + layer * 3) % 11)
                name = f"gemm{layer}" if window else f"gemm{layer * layer}"
                line.compute((400 + 60 * layer) * noise * slow.get(line.rank, 1), name)
                handles.append(line.post(line.rank // 3, op))
            for half in (handles[:3], handles[3:]):
                end = max(begun for begun, *_ in half) + 20
                for line, handle in zip(lines, handles, strict=True):
                    if handle in half:
                        line.finish(handle, end, in_nelems=10**7 + window, dtype="BFloat16")
        for line, begin in zip(lines, begins, strict=True):
            line.step(100 * window + 10 + line.rank, begin)
    for line in lines:
        line.rows = [row for row in line.rows if kept(line.rank, row["ts"])]
    return write_run(folder, lines, {0: (0, 1, 2), 1: (3, 4, 5)}, {0: "dp", 1: "dp"}, RANKS)


@pytest.mark.parametrize(("slow", "named"), [({}, ()), (SLOW, (2,))])
def test_time_between_captures_hides_no_slow_rank(tmp_path, slow, named):
    """Marks without a common number are left out, but not what they tell of the captures."""
    found = analyse(job(tmp_path, slow))
    assert (found.verdict, tuple(s.rank for s in found.suspects)) == (
        "slow_rank" if slow else "healthy",
        named,
    )
    assert found.what_if.step_ms < APART_US / 1000


@pytest.mark.parametrize("slow", [{}, SLOW])
def test_part_of_a_step_proves_nothing(tmp_path, slow):
    """Captures of odd and even ranks overlap in part: without the rule, the slow rank's job is healthy."""
    odd, even = (500 * MS, 1019.5 * MS), (1022.5 * MS, float("inf"))

    def kept(rank, ns):
        begin, end = odd if rank % 2 else even
        return not begin < ns < end

    found = analyse(job(tmp_path, slow, kept))
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert found.reason.startswith(
        "no step was recorded whole on enough ranks; in the part that all recorded"
    )
