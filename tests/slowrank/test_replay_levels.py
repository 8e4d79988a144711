"""Both ways to replay a step model give the same bits, and what cannot be laid out by levels is replayed in turn."""

from dataclasses import replace

import numpy as np

from tracekit.step_graph.own_parts import WaitingParts
from tracekit.step_graph.rank_timeline import MARK, NEED, POST, RankTimeline
from tracekit.step_graph.replay import StepModel

RANKS, INSTANCES = 5, 12
NEVER = (
    0.15  # of the operations: their needs have no post; others are sent to a buffer, or asked for by nobody
)
NOTHING = np.zeros((2, 0), np.int64)


def line(row, kinds, events, rng):
    """One rank with these events, at random moments of its own time."""
    readings = np.sort(rng.uniform(0, 1e6, len(kinds)))
    knots = np.array([0.0, 1e6])
    kinds, events = np.array(kinds, np.int8), np.array(events, np.int32)
    return RankTimeline(row, kinds, readings, events, knots, knots, (), float(rng.uniform(0, 1e5)))


def model(seed, tangled=False):
    """A model of random instances that all ranks run in one order, or each in its own if `tangled`."""
    rng = np.random.default_rng(seed)
    members = [rng.permutation(RANKS)[: rng.integers(1, RANKS + 1)] for _ in range(INSTANCES)]
    instance, fixed, lines = [], [], []
    for row in range(RANKS):
        kinds, events, open_ = [], [], []
        order = rng.permutation(INSTANCES) if tangled else range(INSTANCES)
        for number in (n for n in order if row in members[n]):
            instance.append(int(number) if rng.random() > NEVER else -1)
            fixed.append(float(rng.uniform(0, 1e5)) if instance[-1] < 0 or rng.random() < NEVER else -1.0)
            open_.append(len(instance) - 1)
            if rng.random() > NEVER:
                kinds, events = [*kinds, POST], [*events, open_[-1]]
            if rng.random() > NEVER:
                needed = open_.pop(rng.integers(len(open_)))
                kinds, events = [*kinds, NEED], [*events, needed]
        lines.append(line(row, kinds, events, rng))
    return StepModel(
        own=np.full((RANKS, 1), 1e6),
        runs=(((0,), tuple(lines)),),
        instance=np.array(instance, np.int64),
        fixed=np.array(fixed),
        transfer=rng.uniform(0, 1e5, INSTANCES),
        before=np.full(INSTANCES, -1),
        later=rng.uniform(0, 10, len(instance)),
        caused=NOTHING,
        shares=np.ones(1),
    )


def in_turn(found):
    """The same model, with no levels."""
    copy = replace(found)
    copy.__dict__["levels"] = (None,)
    return copy


def queued(found, least=0):
    """The same model; each instance queues behind the last one whose ranks (at least `least`) run it as well."""
    ranks = [set() for _ in range(INSTANCES)]
    for row, line in enumerate(found.runs[0][1]):
        for kind, event in zip(line.kinds, line.events, strict=True):
            if kind == POST and found.instance[event] >= 0:
                ranks[found.instance[event]].add(row)
    before = [
        max((m for m in range(n) if least <= len(ranks[m]) and ranks[m] <= ranks[n]), default=-1)
        for n in range(INSTANCES)
    ]
    return replace(found, before=np.array(before))


def caused(found, seed):
    """The same model; most instances wait for the ends of one or two of the three before them, on any ranks."""
    rng = np.random.default_rng(seed)
    pairs = {(n, int(rng.integers(max(n - 3, 0), n))) for n in range(1, INSTANCES) for _ in range(2)}
    return replace(found, caused=np.array([p for p in sorted(pairs) if rng.random() < 0.7]).T)


def levelled(found):
    return found.levels[0] is not None


def held(found):
    """For how long each needed operation holds its rank up."""
    return dict(zip(*(a.tolist() for a in found.replay()), strict=True))


def same(found):
    other = in_turn(found)
    assert held(found) == held(other)
    target = found.own * np.linspace(0.5, 1.5, RANKS)[:, None]
    assert found.step_ns(found.own) == other.step_ns(found.own)
    assert found.step_ns(target, np.zeros(INSTANCES)) == other.step_ns(target, np.zeros(INSTANCES))


def test_levels_give_the_same_bits():
    found = [model(seed) for seed in range(60)]
    assert sum(levelled(m) for m in found) >= 50
    for m in found:
        same(m)


def test_a_hypothesis_is_replayed_once(monkeypatch):
    """Arguments of equal entries are one hypothesis, also where a rank becomes shorter in some of its parts."""
    found, target = model(0), np.full((RANKS, 1), 9e5)
    asked = [
        (target, None, None),
        (target, np.zeros(INSTANCES), None),
        (target, None, {(0, 1): WaitingParts(np.array([1e5]), np.array([4e5]))}),
        (target, None, {(0, 2): WaitingParts(np.array([1e5]), np.array([4e5]))}),
        (target, None, {(0, 1): WaitingParts(np.array([1e5]), np.array([5e5]))}),
    ]
    first, runs, run = [found.step_ns(*some) for some in asked], [], StepModel._run
    monkeypatch.setattr(StepModel, "_run", lambda self, *some: runs.append(self) or run(self, *some))
    assert [found.step_ns(target.copy(), *some) for _, *some in asked] == first
    assert not runs
    assert [replace(found).step_ns(*some) for some in asked] == first
    assert len(runs) >= len(asked)


def test_marks_give_the_same_bits():
    """Every rank passes two marks: where a step that windows cut would end, in a whole one, and the end of that one."""
    found, rng = [model(seed) for seed in range(60)], np.random.default_rng(0)
    for n, m in enumerate(found):
        ((columns, lines),) = m.runs
        marked = []
        for one in lines:
            at = np.sort(rng.integers(0, len(one.kinds) + 1, 2))
            kinds, events = np.insert(one.kinds, at, MARK), np.insert(one.events, at, 0)
            readings = np.insert(one.readings, at, np.append(one.readings, 1e6)[at])
            marked.append(replace(one, kinds=kinds, events=events, readings=readings))
        found[n] = replace(m, runs=((columns, tuple(marked)),))
        assert held(found[n]) == held(m)
        same(found[n])
    assert sum(levelled(m) for m in found) >= 50


def test_queues_give_the_same_bits():
    found = [queued(model(seed), least=1) for seed in range(100, 140)]
    assert sum(levelled(m) for m in found) >= 30
    assert sum(n >= 0 for m in found for n in m.before) > 40
    for m in found:
        same(m)


def test_causes_give_the_same_bits():
    found = [caused(queued(model(seed), least=1), seed) for seed in range(300, 340)]
    assert sum(levelled(m) for m in found) >= 25
    for m in found:
        same(m)
    assert sum(held(m) != held(replace(m, caused=NOTHING)) for m in found) > 10


def test_an_instance_starts_when_its_cause_ends():
    """Ranks 0 and 1 share one instance; rank 2 runs another alone, which waits for the end of that one."""
    rng = np.random.default_rng(0)
    lines = [line(n, [POST], [n], rng) for n in range(2)] + [line(2, [POST, NEED], [2, 2], rng)]
    posts = [float(made.start + made.readings[0]) for made in lines]
    found = replace(
        model(0),
        runs=(((0,), tuple(lines)),),
        instance=np.array([0, 0, 1]),
        fixed=np.full(3, -1.0),
        transfer=np.array([3e6, 5e5]),
        before=np.full(2, -1),
        later=np.zeros(3),
        caused=np.array([[1], [0]]),
    )
    assert held(found)[2] == max(posts[:2]) + 3e6 + 5e5 - float(lines[2].start + lines[2].readings[1])
    same(found)
    cyclic = replace(found, caused=np.array([[1, 0], [0, 1]]))
    assert not levelled(cyclic)
    assert np.isfinite(cyclic.recorded_ns)


def test_a_queue_whose_order_nothing_tells_has_no_levels():
    found = [replace(model(seed), before=np.arange(-1, INSTANCES - 1)) for seed in range(200, 240)]
    assert sum(levelled(m) for m in found) < len(found)
    for m in found:
        same(m)


def test_ranks_that_wait_for_each_other_have_no_levels():
    found = [model(seed, tangled=True) for seed in range(20)]
    assert not all(levelled(m) for m in found)
    for m in found:
        same(m)


def test_runs_without_events_last_their_own_time():
    rng = np.random.default_rng(0)
    empty = replace(model(1), runs=(((0,), tuple(line(row, [], [], rng) for row in range(RANKS))),))
    same(empty)
