"""Communication alone was recorded: ranks may have worked while it waited, and a price allows for that."""

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tracekit.analysis.slowrank.analyse import analyse

RANKS, STEPS, BUCKETS, WORK_US, TRANSFER_US = 4, 5, 6, 3000.0, 400.0
LATE = 2


def recorded(folder, *, blocks, late_us=0.0, slower=1.0, seed=0, ranks=RANKS, work_us=(WORK_US,) * BUCKETS):
    """Returns (run, mean step in ms): buckets of all-reduces, beside backward compute or in its way.

    One rank begins each step late, or works slower; its compute leaves no trace. `work_us`: compute before each bucket.
    """
    buckets = len(work_us)
    noise = np.random.default_rng(seed).normal(1.0, 0.01, (ranks, STEPS, buckets + 1))
    lines = [Timeline(rank) for rank in range(ranks)]
    at, begins = np.zeros(ranks), []
    for step in range(STEPS):
        begins.append(at.copy())
        ended = 0.0
        at[LATE % ranks] += late_us
        for bucket in range(buckets):
            at += (
                work_us[bucket]
                * noise[:, step, bucket]
                * np.where(np.arange(ranks) == LATE % ranks, slower, 1.0)
            )
            posted = np.maximum(at, ended)
            ended = posted.max() + TRANSFER_US
            for line, begin in zip(lines, posted, strict=True):
                line.at = begin
                line.finish(line.post(0), ended)
            at = np.full(ranks, ended) if blocks else at
        at = np.maximum(at, ended) + WORK_US * noise[:, step, buckets]
    begins.append(at.copy())
    for line in lines:
        for step in range(STEPS):
            line.at = begins[step + 1][line.rank]
            line.step(step, begins[step][line.rank])
    run = write_run(folder, lines, {0: tuple(range(ranks))}, {0: "mesh_dp"}, ranks)
    return run, float(begins[-1].max()) / STEPS / 1000


FAULTS = {
    "late beside compute": {"blocks": False, "late_us": 1500.0},
    "hardly late beside compute": {"blocks": False, "late_us": 700.0},
    "slower beside compute": {"blocks": False, "slower": 1.2},
    "late in the way": {"blocks": True, "late_us": 1500.0},
    "slower in the way": {"blocks": True, "slower": 1.2},
}


@pytest.mark.quick(5)
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_interval_holds_what_a_cure_saves(tmp_path, fault, ranks):
    (tmp_path / "cured").mkdir()
    run, step = recorded(tmp_path, **FAULTS[fault], ranks=ranks)
    _, cured = recorded(tmp_path / "cured", blocks=FAULTS[fault]["blocks"], ranks=ranks)
    answer = analyse(run)
    first = (answer.suspects or answer.candidates)[0]
    assert first.rank == LATE % ranks
    assert first.lost_ms_low <= step - cured <= first.lost_ms_high


def test_what_blocks_is_named_at_its_price(tmp_path):
    run, _ = recorded(tmp_path, blocks=True, slower=1.2)
    answer = analyse(run)
    assert [s.rank for s in answer.suspects] == [LATE]
    assert answer.suspects[0].lost_ms_low > 0.25 * 0.2 * BUCKETS * WORK_US / 1000


@pytest.mark.parametrize("ranks", [2, 4])
def test_one_factor_on_all_work_is_a_slow_device(tmp_path, ranks):
    """Work that a wait conceals follows no proportion, so the price has no doubt by it."""
    work = (1000.0, 4000.0, 2000.0) * 4
    run, step = recorded(tmp_path, blocks=True, slower=1.2, ranks=ranks, work_us=work)
    (tmp_path / "cured").mkdir()
    _, cured = recorded(tmp_path / "cured", blocks=True, ranks=ranks, work_us=work)
    (suspect,) = analyse(run).suspects
    assert suspect.rank == LATE % ranks
    assert 0.7 * (step - cured) < suspect.lost_ms_low <= step - cured <= suspect.lost_ms_high


def test_lateness_beside_compute_counts_once(tmp_path):
    run, _ = recorded(tmp_path, blocks=False, late_us=1500.0)
    first = (analyse(run).suspects or analyse(run).candidates)[0]
    assert first.lost_ms_per_step < 2 * 1.5  # six collectives wait for it


def test_healthy_stays_healthy(tmp_path):
    assert analyse(recorded(tmp_path, blocks=False)[0]).verdict == "healthy"
