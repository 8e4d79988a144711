"""However many ranks are late in a step, they are no usual ones: the job is not healthy, and no rank is named."""

import numpy as np
import pytest

from tests.localise.case import make, save
from tests.slowrank.turns import by_halves, delayed, in_turn
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.ingest import load
from tracekit.report.slowrank_text import next_step
from tracekit.step_graph.delays import PROVEN, chance_of_delays, exponential_odds, levels, low, spacing_noise

KINDS = ["pause", "loader", "collector", "kernel", "device"]
CAUSES = {"loader": "dataloader", "collector": "host_stall"}


def answer(folder, world, struck, kind, **more):
    """The finding, and the share of the step that the delays take."""
    (folder / "calm").mkdir()
    _, calm = delayed(folder / "calm", world, {}, kind, **more)
    run, step = delayed(folder, world, struck, kind, **more)
    return analyse(run), 1.0 - calm / step


def saved(found):
    return 1.0 - 1.0 / found.what_if.slowdown


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("us", [700.0, 2000.0])
@pytest.mark.parametrize("world", [3, 4, 8])
def test_halves_of_the_ranks_are_late_in_turn(tmp_path, world, us, kind):
    found, lost = answer(tmp_path, world, by_halves(world), kind, us=us)
    assert (found.verdict, found.cause, found.suspects) == ("imbalance", CAUSES.get(kind, "unknown"), ())
    assert saved(found) == pytest.approx(lost, abs=0.02)


@pytest.mark.quick(4)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("world", "share"), [(3, 2), (4, 1), (4, 3), (6, 4), (8, 2), (8, 6), (16, 8)])
def test_some_ranks_are_late_in_turn(tmp_path, world, share, kind):
    found, lost = answer(tmp_path, world, in_turn(world, share), kind)
    assert (found.verdict, found.suspects) == ("imbalance", ()), found.reason
    assert saved(found) == pytest.approx(lost, abs=0.03)


@pytest.mark.quick(4)
@pytest.mark.parametrize("world", [2, 3, 4, 8, 16])
@pytest.mark.parametrize(
    "twin",
    [
        {"jitter": 0.05},
        {"pause_us": 40.0},
        {"length": lambda step: 1.6 if step % 2 else 1.0},
        {"length": lambda step: 1.5 if step % 4 == 3 else 1.0},
        {"length": lambda step: (1.1, 0.7, 1.7, 0.9, 1.4, 0.6, 1.2, 1.0)[step]},
    ],
    ids=["jitter", "pauses", "alternate", "fourth", "lengths"],
)
def test_what_all_ranks_do_together_is_healthy(tmp_path, twin, world):
    assert analyse(delayed(tmp_path, world, {}, steps=8, **twin)[0]).verdict == "healthy"


@pytest.mark.quick(3)
@pytest.mark.parametrize(("kind", "verdict"), [("loader", "imbalance"), ("pause", "healthy")])
@pytest.mark.parametrize("late", [(4,), (2, 5), (1, 4, 6)])
def test_all_ranks_are_late_at_once(tmp_path, late, kind, verdict):
    found, lost = answer(tmp_path, 4, dict.fromkeys(late, range(4)), kind, steps=8)
    assert (found.verdict, found.suspects, found.candidates) == (verdict, (), ())
    assert f"in step {', '.join(map(str, late))}" in found.reason
    if kind == "loader":
        assert found.cause == "dataloader"
        assert "persistent_workers" in next_step(found)
        assert saved(found) == pytest.approx(lost, abs=0.01)


def test_loaders_start_in_the_first_step(tmp_path):
    found, _ = answer(tmp_path, 4, {0: range(4)}, "loader", steps=8)
    assert found.verdict == "healthy"
    assert "in step 0, together" in found.reason


@pytest.mark.quick(1)
@pytest.mark.parametrize("share", [4, 6, 7])
def test_most_ranks_are_late_at_times(tmp_path, share):
    """The ranks that are late are candidates, also where they are most of all."""
    found, _ = answer(tmp_path, 8, dict.fromkeys((1, 3, 5), range(share)), "pause")
    assert (found.verdict, found.suspects) == ("inconclusive", ())
    assert {c.rank for c in found.candidates} <= set(range(share))
    assert found.candidates


@pytest.mark.parametrize("kind", ["device", "kernel"])
def test_ranks_that_were_slow_twice_are_not_named(tmp_path, kind):
    """Six steps strike four ranks one after the other: two are struck twice."""
    found, _ = answer(tmp_path, 4, in_turn(4, 1), kind)
    assert (found.verdict, found.suspects) == ("imbalance", ())


def at_random(random):
    """Delays of no usual length, often none."""
    return max(random.exponential(1.5) - 0.7, 0.0)


@pytest.mark.quick(2)
@pytest.mark.parametrize("world", [2, 8])
@pytest.mark.parametrize("kind", ["loader", "collector"])
def test_delays_that_spans_name_are_no_noise(tmp_path, kind, world):
    always = dict.fromkeys(range(12), range(world))
    found, share = answer(tmp_path, world, always, kind, us=4000.0, steps=12, varied=at_random)
    assert (found.verdict, found.cause, found.suspects) == ("imbalance", CAUSES[kind], ())
    assert saved(found) == pytest.approx(share, abs=0.08)


def test_one_loader_late_at_random_is_named(tmp_path):
    found, _ = answer(tmp_path, 8, {step: [3] for step in range(12)}, "loader", steps=12, varied=at_random)
    assert (found.verdict, found.cause, [s.rank for s in found.suspects]) == ("slow_rank", "dataloader", [3])


def single_delays(folder, world, steps, us, seed, kind="pause"):
    """The finding about ranks that all stall in each step, by an exponential time of `us` on average."""
    always = dict.fromkeys(range(steps), range(world))
    more = {"us": us, "steps": steps, "seed": seed, "varied": lambda random: random.exponential()}
    return answer(folder, world, always, kind, **more)


@pytest.mark.parametrize(
    ("world", "steps", "us", "seed", "kind"),
    [
        (8, 12, 3000.0, 1, "pause"),
        (12, 6, 9600.0, 8, "pause"),
        (4, 11, 2200.0, 14, "pause"),
        (15, 9, 3400.0, 45, "kernel"),
    ],
)
def test_single_delays_of_all_ranks_accuse_none(tmp_path, world, steps, us, seed, kind):
    found, share = single_delays(tmp_path, world, steps, us, seed, kind)
    assert (found.verdict, found.suspects) == ("imbalance", ()), found.reason
    assert 0.7 * share < saved(found) < share + 0.05  # the short ones are left out


def test_few_single_delays_accuse_none(tmp_path):
    """Five ranks in five steps prove neither noise nor delays."""
    found, _ = single_delays(tmp_path, 5, 5, 7500.0, 116)
    assert (found.verdict, found.suspects) == ("inconclusive", ()), found.reason


def test_work_of_unequal_tokens_is_no_delay_of_hosts(tmp_path):
    """Two ranks load for 5 ms in each of three steps, and the kernels of all vary by as much with their tokens."""
    case = make(9902212)
    save(case, tmp_path)
    found = analyse(load([str(tmp_path)]))
    assert (found.verdict, found.cause) == ("slow_rank", "dataloader")
    assert tuple(sorted(s.rank for s in found.suspects)) == case.culprits == (4, 5)


def test_a_group_without_ranks_has_no_chance():
    """No rank of the second stage left a trace."""
    times = np.array([[1.0, 2.0, 3.0], [2.0, 3.0, 1.0], [9.0, 9.5, 9.2]])
    with_empty = chance_of_delays(times, [np.arange(3), np.arange(0)])
    assert with_empty.tolist() == chance_of_delays(times, [np.arange(3)]).tolist()


def test_equal_times_have_no_odds():
    """Their mean is off by a rounding, which is no difference."""
    equal = np.full((3, 3), 123_456_789.123)
    assert max(exponential_odds(equal, [np.arange(3)])) == 0.0


@pytest.mark.parametrize("ranks", [4, 8, 32])
def test_odds_of_single_delays(ranks):
    """Neither what ranks differ by in all steps, nor what steps differ by on all ranks, is a delay of one entry."""
    random, groups = np.random.default_rng(5), [np.arange(ranks)]
    lasting, common = 5.0 * random.exponential(size=(ranks, 1)), 20.0 * random.exponential(size=(1, 12))
    noise = random.normal(size=(ranks, 12))
    assert max(exponential_odds(noise + random.exponential(10.0, (ranks, 12)), groups)) > PROVEN
    for healthy in (noise, noise + lasting, noise + common, noise + lasting + common):
        assert max(exponential_odds(healthy, groups)) < 0


def test_chance_of_single_delays():
    random = np.random.default_rng(2)
    few = [chance_of_delays(random.exponential(size=(6, 5)), [np.arange(6)]).min() for _ in range(500)]
    assert np.mean(np.array(few) < 0.05) < 0.06
    slow = random.exponential(size=(6, 5)) + 6.0 * (np.arange(6) == 2)[:, None]
    assert (chance_of_delays(slow, [np.arange(6)]) < 0.01).tolist() == [
        False,
        False,
        True,
        False,
        False,
        False,
    ]


@pytest.mark.parametrize("share", [0, 1, 4, 7])
def test_noise_does_not_grow_by_delays(share):
    random = np.random.default_rng(3)
    values = 100.0 + random.normal(size=(8, 10))
    for column in range(10):
        values[[(column * share + n) % 8 for n in range(share)], column] += 30.0
    assert spacing_noise(values, [np.arange(8)]) == pytest.approx(1.2, abs=0.35)


def test_levels_are_those_without_delays():
    own, steps = np.array([[0.0], [0.0], [5.0], [0.0]]), np.array([10.0, 20.0, 14.0, 10.0])
    late = np.array([[0, 90, 90, 0], [90, 90, 0, 0], [90, 0, 90, 0], [0, 0, 0, 90]])
    found = levels(own + steps + late, [np.arange(4)], 1.0)
    assert found.row + found.column == pytest.approx(own + steps, abs=found.least)
    assert low(np.array([[1.0, 2.0], [np.nan, 2.2], [9.0, 2.4]]), 4.0)[0].tolist() == [1.0, 2.2]
