"""Schedules: their definitions, that they run for all sizes, and that bad tables are refused."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reftrain.errors import ScheduleError
from reftrain.schedule import one_way
from reftrain.schedule.actions import RECEIVES, SENDS, Action, Kind
from reftrain.schedule.check import check, first_problem, runs
from reftrain.schedule.dependencies import ACTIVATION, GRADIENT, Dependencies
from reftrain.schedule.generators import make_schedule
from reftrain.schedule.lower import lower
from reftrain.schedule.spec import ScheduleSpec


def text(actions):
    return " ".join(map(str, actions))


def test_one_forward_one_backward():
    schedule = make_schedule("1f1b", 2, 1, 3, 1)
    assert text(schedule.actions[0]) == "F0.0 F0.1 B0.0 F0.2 B0.1 B0.2"
    assert text(schedule.actions[1]) == "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2"


def test_gpipe_goes_back_in_reverse():
    assert text(make_schedule("gpipe", 2, 1, 2, 1).actions[0]) == "F0.0 F0.1 B0.1 B0.0"


@given(p=st.integers(1, 5), v=st.integers(1, 3), rounds=st.integers(1, 3), k=st.integers(1, 8))
@settings(max_examples=60, deadline=None)
def test_flexible_warm_up_is_the_published_one(p, v, rounds, k):
    """(v-1)·k + 2·(p-r-1) forwards before the first backward, at most m·v, where k divides m and k >= p."""
    m = rounds * k
    schedule = make_schedule("flexible", p, v, m, k)
    for rank, actions in enumerate(schedule.actions):
        before = [a.kind for a in actions].index(Kind.BACKWARD)
        published = min((v - 1) * k + 2 * (p - rank - 1) + 1, m * v) if k >= p else m * v
        assert before == published


@given(
    name=st.sampled_from(["flexible", "afab"]),
    p=st.integers(1, 6),
    v=st.integers(1, 3),
    m=st.integers(1, 13),
    k=st.integers(1, 13),
    zero=st.integers(0, 3),
)
@settings(max_examples=120, deadline=None)
def test_any_sizes_run_and_messages_match(name, p, v, m, k, zero):
    schedule = make_schedule(name, p, v, m, k)
    check(schedule)
    lowered = lower(schedule, zero)
    sent = Counter(a for actions in lowered.actions for a in actions if a.kind in SENDS)
    received = Counter(a for actions in lowered.actions for a in actions if a.kind in RECEIVES)
    assert all(n == 1 for n in (*sent.values(), *received.values()))
    assert len(sent) == len(received) == (2 * (p * v - 1) * m if p > 1 else 0)
    for rank in range(p):
        for peer in range(p):
            assert orders(lowered, rank, peer) == arrivals(lowered, rank, peer)
        reduced = {a.stage for a in lowered.actions[rank] if a.kind is Kind.REDUCE_GRADIENT}
        assert reduced == set(lowered.stages_of(rank))


def orders(schedule, sender, receiver):
    out = []
    for a in schedule.actions[sender]:
        step = {Kind.SEND_ACTIVATION: 1, Kind.SEND_GRADIENT: -1}.get(a.kind)
        if step and schedule.placement[a.stage + step] == receiver:
            out.append((a.stage + step, a.micro_batch, step))
    return out


def arrivals(schedule, sender, receiver):
    out = []
    for a in schedule.actions[receiver]:
        step = {Kind.RECV_ACTIVATION: 1, Kind.RECV_GRADIENT: -1}.get(a.kind)
        if step and schedule.placement[a.stage - step] == sender:
            out.append((a.stage, a.micro_batch, step))
    return out


def test_zero_2_reduces_after_each_micro_batch_run():
    lowered = lower(make_schedule("flexible", 2, 2, 4, 2), 2)
    reductions = [str(a) for a in lowered.actions[0] if a.kind is Kind.REDUCE_GRADIENT]
    assert reductions == ["R2.1", "R0.1", "R2.3", "R0.3"]
    once = lower(make_schedule("flexible", 2, 2, 4, 2), 1)
    assert [str(a) for a in once.actions[0] if a.kind is Kind.REDUCE_GRADIENT] == ["R2.3", "R0.3"]


@pytest.mark.parametrize("arguments", [("1f1b", 2, 2, 4, 2), ("flexible", 0, 1, 1, 1), ("dream", 2, 1, 4, 2)])
def test_sizes_without_meaning_are_refused(arguments):
    with pytest.raises(ScheduleError):
        make_schedule(*arguments)


def change(schedule, rank, edit):
    actions = [list(a) for a in schedule.actions]
    edit(actions[rank])
    return replace(schedule, actions=tuple(tuple(a) for a in actions))


def swap(first, second):
    def edit(actions):
        actions[first], actions[second] = actions[second], actions[first]

    return edit


@pytest.mark.parametrize(
    ("edit", "rule"),
    [
        (lambda a: a.remove(Action(Kind.BACKWARD, 0, 1)), "rank 0: B0.1 never runs"),
        (lambda a: a.append(Action(Kind.FORWARD, 0, 0)), "rank 0, slot 6: F0.0 runs twice"),
        (
            lambda a: a.append(Action(Kind.FORWARD, 1, 0)),
            "rank 0, slot 6: F1.0 is not on the rank that holds stage 1",
        ),
        (lambda a: a.append(Action(Kind.FORWARD, 0, 7)), "rank 0, slot 6: F0.7 has no such micro-batch"),
        (swap(0, 2), "rank 0, slot 0: B0.0 comes before F0.0"),
    ],
)
def test_bad_tables_are_refused_with_rank_and_rule(edit, rule):
    schedule = change(make_schedule("1f1b", 2, 1, 3, 1), 0, edit)
    assert first_problem(schedule) == rule
    with pytest.raises(ScheduleError):
        check(schedule)


def test_needs():
    needs = Dependencies(make_schedule("1f1b", 2, 1, 4, 1)).needs
    assert set(needs(Action(Kind.FORWARD, 0, 3))) == set()
    assert set(needs(Action(Kind.BACKWARD, 1, 3))) == {(ACTIVATION, 0, 1, 3)}
    assert set(needs(Action(Kind.BACKWARD, 0, 3))) == {(ACTIVATION, 0, 0, 3), (GRADIENT, 0, 1, 3)}


def fewest_by_trial(ranks, virtual, m, k):
    spec = ScheduleSpec("flexible", ranks, m, virtual, k)
    warm = [(virtual - 1) * k + 2 * (ranks - r - 1) for r in range(ranks)]
    return next(n for n in range(virtual * m) if runs(one_way._table(spec, k, [w + n for w in warm])))


@pytest.mark.parametrize(
    ("ranks", "virtual", "k", "rest"), [(4, 3, 4, 1), (5, 2, 5, 2), (5, 5, 5, 2), (3, 2, 4, 1)]
)
def test_the_fewest_more_are_found_on_short_tables(ranks, virtual, k, rest):
    spec = ScheduleSpec("flexible", ranks, 4 * k + rest, virtual, k)
    warm = [(virtual - 1) * k + 2 * (ranks - r - 1) for r in range(ranks)]
    assert one_way._fewest_more(spec, k, warm) == fewest_by_trial(ranks, virtual, 4 * k + rest, k)
