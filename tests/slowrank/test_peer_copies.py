"""Copies from the memory of another device are transfers: they blame a link, not a device that waits for its peer."""

import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import LAYER_US, TRANSFER_US
from tracekit.analysis.slowrank.analyse import analyse

RANKS, STEPS, LATE = 8, 4, 300.0
COPY = "Memcpy PtoP (Device -> Device)"
PAIRS = [(r, r + 1) for r in range(0, RANKS, 2)]


def copying(folder, *, slow, lost=()):
    """Pairs of ranks copy from each other and reduce, then all ranks reduce; copies of `slow` ranks last longer."""
    lines = [Timeline(r) for r in range(RANKS)]
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for line in lines:
            line.compute(LAYER_US * (1 + 0.001 * ((line.rank + step) % 3)))
            line.compute(100.0 + (LATE if line.rank in slow else 0.0), COPY)
        for number, members in [*enumerate(PAIRS, 1), (0, tuple(range(RANKS)))]:
            handles = [lines[r].post(number) for r in members]
            end = max(handle[0] for handle in handles) + TRANSFER_US
            for rank, handle in zip(members, handles, strict=True):
                lines[rank].finish(handle, end)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    groups = {0: tuple(range(RANKS)), **dict(enumerate(PAIRS, 1))}
    descs = {0: "default_pg", **dict.fromkeys(range(1, len(PAIRS) + 1), "mesh_tp")}
    return write_run(folder, [line for line in lines if line.rank not in lost], groups, descs, RANKS)


@pytest.mark.parametrize("slow", [(4,), (4, 5)])
def test_slow_copies_are_a_slow_link(tmp_path, slow):
    finding = analyse(copying(tmp_path, slow=slow))
    assert (finding.verdict, finding.cause) == ("slow_link", "network")
    assert sorted(s.rank for s in finding.suspects) == list(slow)
    assert finding.what_if.step_ms - finding.what_if.without_suspects_ms == pytest.approx(
        LATE / 1000, rel=0.1
    )
    assert finding.reason.startswith("copies between devices take longer on rank")


def test_an_unrecorded_other_end_leaves_it_open(tmp_path):
    """The port of rank 5 is slow; rank 4 alone shows it, which is innocent."""
    finding = analyse(copying(tmp_path, slow=(4, 5), lost=(5,)))
    assert finding.verdict == "inconclusive"
    assert [s.rank for s in finding.candidates] == [4, 5]
    assert finding.to_decide == "add the trace of rank 5"
