"""`reftrain goodput`: the published share, the closed forms, and where the time of a job goes."""

from dataclasses import fields, replace

import numpy as np
import pytest

from reftrain.goodput.failures import COUNT, History, hours_between
from reftrain.goodput.model import Habits, Spent, best, daly, drawn, rows_for, simulate, young

PAPER = Habits(between=hours_between(16384) * 3600.0)


def history(*gaps: float, hangs: bool = False, planned: bool = False, replaces: bool = False) -> History:
    """Interruptions with these gaps, then none."""
    count = len(gaps) + 1
    flags = [np.full(count, flag) for flag in (hangs, planned, replaces)]
    return History(np.array([*gaps, 1e9]), *flags)


def total(spent: Spent) -> float:
    return sum(getattr(spent, f.name) for f in fields(Spent) if f.name != "interruptions")


def test_the_published_share_is_reached():
    assert COUNT == 466
    _, spent = best(PAPER, drawn(rows_for(PAPER), 1, 0))
    assert 0.90 < spent.share < 0.96
    assert total(spent) == pytest.approx(PAPER.length)


def test_the_best_interval_is_dalys_where_it_applies():
    plain = Habits(between=10_000.0, days=300.0, write=0.0, stops=0.0, hangs=0.0, restart=0.0, repair=0.0)
    found, _ = best(plain, drawn(rows_for(plain), 1, 3))
    assert found == pytest.approx(daly(plain), rel=0.4)
    assert daly(plain) == pytest.approx(young(plain), rel=0.05)


def test_a_job_without_interruptions_takes_dalys_interval():
    calm = Habits(between=1e9, days=1.0)
    found, spent = best(calm, drawn(rows_for(calm), 1, 0))
    assert found == daly(calm)
    assert (spent.interruptions, spent.lost) == (0, 0.0)


def test_one_interruption_is_accounted_by_hand():
    """At 1 000 s: nine checkpoints of 100 s + 5 s are made, the ninth (945 s) is not written before 1 005 s."""
    habits = Habits(between=1.0, days=0.1, restart=50.0)
    spent = simulate(habits, 100.0, [history(1000.0)])
    rest = habits.length - 1000.0 - 30.0 - 50.0
    cycles = int(rest // 105.0)
    assert spent.lost == pytest.approx(1000.0 - 8 * 105.0)
    assert spent.detection == 30.0
    assert spent.restart == 50.0
    assert spent.training == pytest.approx(800.0 + rest - 5.0 * cycles)
    assert total(spent) == pytest.approx(habits.length)


def test_a_planned_interruption_loses_and_detects_nothing():
    spent = simulate(Habits(between=1.0, days=0.1), 100.0, [history(1000.0, planned=True)])
    assert (spent.lost, spent.detection, spent.restart) == (0.0, 0.0, 300.0)


def test_a_restart_is_interrupted_too():
    spent = simulate(Habits(between=1.0, days=0.1), 100.0, [history(1000.0, 100.0, hangs=True)])
    assert spent.restart == 400.0
    assert spent.detection == 1200.0
    assert spent.interruptions == 2


@pytest.mark.parametrize(("spares", "waits"), [(2, 0.0), (1, 3600.0 - 1000.0 - 330.0)])
def test_a_job_without_spares_waits_for_a_repair(spares, waits):
    habits = Habits(between=1.0, days=1.0, repair=3600.0, spares=spares)
    spent = simulate(habits, 100.0, [history(1000.0, 1000.0, replaces=True)])
    assert spent.spares == pytest.approx(waits)


def test_faster_detection_and_fewer_interruptions_train_more():
    histories = drawn(2 * rows_for(PAPER), 1, 1)
    shares = [simulate(replace(PAPER, hangs=hangs), 300.0, histories).share for hangs in (600.0, 60.0, 1.0)]
    assert shares == sorted(shares)
    assert simulate(replace(PAPER, between=PAPER.between / 2), 300.0, histories).share < shares[0]
