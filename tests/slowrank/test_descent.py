"""Figure 8 of "Scaling Llama 3 Training" (ISCA'25): cp 2, tp 4; rank 2 looks slow in TP, rank 6 is.

Ranks 0–3 are cp 0, ranks 4–7 cp 1. Rank 6 computes longer; rank 2, its CP partner, waits for it in CP and therefore
comes last to its own TP group, where ranks 0, 1 and 3 wait for it.
"""

import pytest

from tests.slowrank.events import Timeline, write_run
from tracekit.analysis.slowrank.analyse import analyse

TP = {0: (0, 1, 2, 3), 1: (4, 5, 6, 7)}
CP = {2: (0, 4), 3: (1, 5), 4: (2, 6), 5: (3, 7)}
GROUPS = {**TP, **CP}


def job(folder, slow=(), factor=1.3, steps=6, layers=3, named=True):
    """Per layer: compute, CP gather, compute, TP reduce; jitter of 1 % that differs by rank, step and layer."""
    lines = [Timeline(r) for r in range(8)]
    for step in range(steps):
        begins = [line.at for line in lines]
        for layer in range(layers):
            for axis in (CP, TP):
                handles = {}
                for line in lines:
                    jitter = 1 + 0.01 * (((line.rank * 7 + step * 5 + layer * 3) % 11) / 5 - 1)
                    line.compute(1000 * jitter * (factor if line.rank in slow else 1))
                    group = next(g for g, members in axis.items() if line.rank in members)
                    handles[line.rank] = line.post(group)
                for members in axis.values():
                    end = max(handles[r][0] for r in members) + 50
                    for r in members:
                        lines[r].finish(handles[r], end)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    descs = {g: ("mesh_tp" if g in TP else "mesh_cp") if named else "undefined" for g in GROUPS}
    return write_run(folder, lines, GROUPS, descs, 8)


def test_waiting_in_cp_excuses_a_rank_in_tp(tmp_path):
    finding = analyse(job(tmp_path, slow=(6,)))
    assert finding.verdict == "slow_rank"
    assert [s.rank for s in finding.suspects] == [6]
    assert [(p.dim, p.index) for p in finding.path] == [("cp", 1), ("tp", 2)]
    assert finding.cause == "gpu_compute"
    assert finding.mesh.sizes == {"tp": 4, "cp": 2, "pp": 1, "dp": 1}


def test_what_the_cure_saves_is_what_was_planted(tmp_path):
    finding = analyse(job(tmp_path, slow=(6,), factor=1.3))
    saved = finding.what_if.step_ms - finding.what_if.without_suspects_ms
    assert saved == pytest.approx(3 * 2 * 0.3, rel=0.1)  # layers × computes a layer × 0.3 ms


def test_lag_shows_to_cp_partner_and_own_tp_group(tmp_path):
    finding = analyse(job(tmp_path, slow=(6,)))
    assert all(level.lag_ms > 0.2 for level in finding.path)


@pytest.mark.parametrize("slow", [(), (0, 1, 2, 3, 4, 5, 6, 7)])
def test_nobody_is_named_when_all_are_alike(tmp_path, slow):
    finding = analyse(job(tmp_path, slow=slow))
    assert finding.verdict == "healthy"
    assert finding.suspects == ()


def test_two_slow_ranks_are_both_named(tmp_path):
    finding = analyse(job(tmp_path, slow=(1, 6)))
    assert sorted(s.rank for s in finding.suspects) == [1, 6]


def test_anonymous_groups_lead_to_the_same_rank(tmp_path):
    finding = analyse(job(tmp_path, slow=(6,), named=False))
    assert [s.rank for s in finding.suspects] == [6]
