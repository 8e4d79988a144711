"""Groups of Gloo's threads: by the order of creation, and because nobody leaves before all came."""

import pytest

from tests.tables.gloo import grid, named, span, steps
from tests.tables.rows import recorded, shifted
from tracekit.inference.groups.thread_groups import groups_of_threads

STEP, STEPS = 10_000, 3
PAIRS = {0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)}


def ranks(shift=(0, 0, 0, 0), swap=(), apart=1500):
    """Four ranks: twice a step tensor groups meet, then replicas; rank 3 and then rank 0 come 900 us late.

    Threads 0 and 1 serve the replicas, 2 and 3 the tensor group; those in `swap` begin with the other thread.
    """
    found = []
    for rank in range(4):
        rows = steps(*((n * STEP, STEP) for n in range(STEPS)))
        for n in range(STEPS):
            begin = n * STEP
            for k, (post, late) in enumerate(((100, 3), (2000, 0))):
                met = begin + post + (900 if late in PAIRS[rank] else 0)
                mine = begin + post + (900 if rank == late else 0)
                rows.append(span(2 + (k + (rank in swap)) % 2, mine, met + 50 - mine))
            met = begin + 4000 + (apart if rank % 2 == n % 2 else 0)
            rows.append(span(n % 2, met - 20 * rank, 100 + 20 * rank))
        found.append(recorded(rank, *shifted(rows, shift[rank])))
    return found


@pytest.mark.parametrize("shift", [(0, 0, 0, 0), (0, 5e6, -3e6, 77)])
@pytest.mark.parametrize("swap", [(), (0, 2)])
def test_threads_find_the_groups_they_serve(shift, swap):
    found = groups_of_threads(ranks(shift=shift, swap=swap), grid())
    tensor = {(r, 202 + t): PAIRS[r] for r in range(4) for t in range(2)}
    replicas = {(r, 200 + t): ((0, 2), (1, 3))[r % 2] for r in range(4) for t in range(2)}
    assert found == tensor | replicas


def test_the_only_group_takes_all_threads():
    world = [named(0, "0", 0, 1, 2)]
    rows = steps((0, STEP))
    alone = [recorded(r, *rows, span(0, 100, 50), span(1, 300, 50)) for r in range(3)]
    assert set(groups_of_threads(alone, world).values()) == {(0, 1, 2)}


def test_members_that_never_meet_are_no_group():
    world = [named(0, "0", 0, 1)]
    early = recorded(0, *steps((0, STEP)), span(0, 100, 50), span(0, 5000, 50))
    late = recorded(1, *steps((0, STEP)), span(0, 100, 50), span(0, 9000, 50))
    assert groups_of_threads([early, late], world) == {}


def test_two_groups_that_fit_stay_open():
    both = [named(0, "0", 0, 1, 2, 3), named(1, "1", 0, 1), named(2, "2", 2, 3)]
    rows = [*steps((0, STEP)), span(0, 100, 50), span(1, 300, 50)]
    assert groups_of_threads([recorded(r, *rows) for r in range(4)], both) == {}


def test_a_missing_rank_leaves_the_others_their_groups():
    found = groups_of_threads([r for r in ranks() if r.rank != 2], grid())
    assert found[1, 202] == (0, 1)
    assert found[1, 200] == (1, 3)


def test_what_all_choices_agree_about_is_told():
    """Where all replicas meet at once they may be the world; the tensor groups are clear all the same."""
    found = groups_of_threads(ranks(apart=0), grid())
    assert set(found) == {(r, 202 + t) for r in range(4) for t in range(2)}
    assert found[3, 202] == (2, 3)


def test_groups_without_numbers_are_told_by_times():
    unnamed = [named(g.group, f"group{g.group}", *g.ranks) for g in grid()]
    assert groups_of_threads(ranks(), unnamed)[3, 202] == (2, 3)


def test_a_wider_group_comes_before_one_rank():
    listed = [named(0, "0", 0, 1, 2), named(1, "1", 0), named(2, "2", 1), named(3, "3", 2)]
    rows = [*steps((0, STEP)), span(0, 100, 50), span(1, 300, 50)]
    found = groups_of_threads([recorded(r, *rows) for r in range(3)], listed)
    assert found == {(r, 200 + t): (0, 1, 2) for r in range(3) for t in range(2)}
