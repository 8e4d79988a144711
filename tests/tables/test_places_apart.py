"""Each place of a step's sequence is of the group that leaves together there, on a stream that carries several."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tracekit.inference.groups.common_ends import Together, choose
from tracekit.inference.groups.places_apart import (
    carries_others,
    leave_apart,
    stand_still_as_one,
    ways_by_place,
)
from tracekit.inference.groups.stream_sequences import StreamClass

US = 1_000.0
PAIRS = [(0, 1), (2, 3), (4, 5), (6, 7)]
EVENS = [(0, 2, 4, 6), (1, 3, 5, 7)]
ALL = [tuple(range(8))]
WAYS = [PAIRS, EVENS, ALL]
MOSTLY_PAIRS = [("all_reduce", PAIRS)] * 6 + [("all_gather", EVENS)] * 2


def stream(places, *, steps=6, jitter=100 * US, tail=0.3 * US, aligned=False, seed=0):
    """Eight ranks that run `places`, (kind, groups) each, in every step; unless `aligned`, their clocks differ."""
    rng = np.random.default_rng(seed)
    columns = len(places) * steps
    starts, ends = np.zeros((8, columns)), np.zeros((8, columns))
    for column in range(columns):
        came = column * 1e6 + rng.normal(0, jitter, 8)
        for group in places[column % len(places)][1]:
            rows = list(group)
            starts[rows, column] = came[rows]
            ends[rows, column] = came[rows].max() + 50 * US + rng.exponential(tail, len(rows))
    if not aligned:
        offset, rate = rng.normal(0, 1e7, (8, 1)), 1 + rng.uniform(-3e-5, 3e-5, (8, 1))
        starts, ends = starts * rate + offset, ends * rate + offset
    usual = tuple(kind for kind, _ in places)
    at = tuple(c % len(places) for c in range(columns))
    kinds = tuple(usual[p] for p in at)
    return StreamClass(
        dict.fromkeys(range(8), 7), tuple(range(8)), starts, ends, -1, aligned, kinds, at, usual
    )


def truth(places):
    return {p: WAYS.index(groups) for p, (_, groups) in enumerate(places)}


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("seed", range(4))
def test_groups_of_two_kinds_are_told(seed, aligned):
    assert ways_by_place(stream(MOSTLY_PAIRS, seed=seed, aligned=aligned), WAYS) == truth(MOSTLY_PAIRS)


@pytest.mark.parametrize("seed", range(4))
def test_one_kind_of_several_groups_needs_the_clock(seed):
    places = [("all_reduce", PAIRS)] * 3 + [("all_reduce", ALL), ("all_reduce", EVENS)]
    assert ways_by_place(stream(places, steps=3, seed=seed, aligned=True), WAYS) == truth(places)
    blind = ways_by_place(stream(places, steps=3, seed=seed), WAYS)
    assert {p: w for p, w in blind.items() if p < len(PAIRS) - 1} == dict.fromkeys(range(3), 0)


@pytest.mark.parametrize("seed", range(4))
def test_no_place_of_one_group_is_another(seed):
    """Whatever stays open, a place is never told to be of a group that it is not of."""
    for jitter, tail in ((100 * US, 3 * US), (2 * US, 0.3 * US), (0.0, 0.0)):
        for groups in WAYS:
            places = [("all_reduce", groups)] * 5
            for aligned in (True, False):
                found = ways_by_place(
                    stream(places, jitter=jitter, tail=tail, seed=seed, aligned=aligned), WAYS
                )
                # who neither comes nor leaves apart waits for nobody: the widest group tells as much as any
                alike = jitter <= 2 * US
                assert set(found.values()) <= ({WAYS.index(groups)} if not alike else {0, 1, 2})


def test_pairs_that_come_as_one_show_wider_groups():
    """The last pair's lead over the others proves it."""
    made = stream([("all_reduce", ALL)] * 2, aligned=True)
    for one, other in pairwise(range(8)):
        if one % 2 == 0:
            made.starts[other] = made.starts[one]
    found = ways_by_place(made, WAYS)
    assert set(found.values()) == {2}


@pytest.mark.parametrize("seed", range(4))
def test_doubtful_clocks_rule_no_group_out(seed):
    """Clocks that are wrong by a constant set no wider group apart, and make none of what ends anyhow."""
    rng = np.random.default_rng(seed)
    for groups in WAYS:
        made = stream([("all_reduce", groups)] * 2, aligned=True, seed=seed)
        shift = rng.uniform(-5e5, 5e5, (8, 1))
        made = replace(made, starts=made.starts + shift, ends=made.ends + shift, doubt=1e6)
        assert set(ways_by_place(made, WAYS).values()) == {WAYS.index(groups)}
        assert choose(Together(made), WAYS) == WAYS.index(groups)


@pytest.mark.parametrize("exact", [True, False])
def test_exact_clocks_separate_what_unknown_rates_hide(exact):
    """Each pair comes as one; a drift of clocks explains as well that the odd ranks leave earlier and earlier."""
    made = stream([("all_reduce", EVENS)], aligned=True, tail=0.0)
    made.starts[1::2] = made.starts[::2]
    late = np.linspace(20, -20, 6) * US
    ends = np.tile(made.starts.max(axis=0) + 50 * US, (8, 1)) + late * (np.arange(8)[:, None] % 2)
    islands = tuple(np.arange(8) // 2) if exact else ()
    made = replace(made, ends=ends, drifts=True, exact=islands)
    assert set(ways_by_place(made, WAYS).values()) == {1 if exact else 2}
    assert choose(Together(made), WAYS) == (1 if exact else 2)


def test_who_stands_still_as_one_waits_elsewhere():
    made = stream([("all_reduce", ALL)], aligned=True)
    made.starts[[2, 3]] -= 5e6
    assert stand_still_as_one(made, 0, PAIRS)
    assert not stand_still_as_one(made, 0, ALL)
    assert not stand_still_as_one(stream([("all_reduce", PAIRS)], aligned=True), 0, PAIRS)


@pytest.mark.parametrize(("kind", "told"), [("all_reduce", {2}), ("other", set())])
def test_ranks_in_step_tell_collectives_only(kind, told):
    """A generic kernel may be a message: who comes and leaves with others may wait for another rank all the same."""
    made = stream([(kind, ALL)] * 2, jitter=0.0, tail=0.0, aligned=True)
    assert set(ways_by_place(made, WAYS).values()) == told
    assert choose(Together(made), WAYS) == (2 if told else None)


@pytest.mark.parametrize("seed", range(4))
def test_few_steps_tell_kinds_only(seed):
    made = stream(MOSTLY_PAIRS * 2, steps=1, seed=seed, aligned=True)
    assert ways_by_place(made, WAYS) == truth(MOSTLY_PAIRS * 2)
    one = [("all_reduce", PAIRS)] * 4 + [("all_reduce", ALL)]
    assert set(ways_by_place(stream(one, steps=1, seed=seed, aligned=True), WAYS).values()) <= {0}


def test_barred_ways_are_not_told():
    made = stream(MOSTLY_PAIRS, aligned=True)
    found = ways_by_place(made, WAYS, {6: [1], 0: [0]})
    assert found == {p: w for p, w in truth(MOSTLY_PAIRS).items() if p not in {0, 6}}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("aligned", [True, False])
def test_a_place_outside_shows_that_others_share_the_stream(seed, aligned):
    pairs = dict.fromkeys(range(6), 0)
    assert carries_others(stream(MOSTLY_PAIRS, seed=seed, aligned=aligned), PAIRS, pairs)
    assert not carries_others(stream([("all_reduce", PAIRS)] * 8, seed=seed, aligned=aligned), PAIRS, pairs)


def test_members_leave_apart_where_others_are_awaited():
    made = stream(MOSTLY_PAIRS, aligned=True)
    assert [leave_apart(made, place, PAIRS) for place in (0, 6)] == [False, True]
