"""Operations match by sequence number, by step, by the best shift, or by source and destination."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tables.rows import comm, gemm, group, launch, matched, partners, recv, send, step
from tracekit.matching.message_order import instance_keys

PAIR = group(0, 0, 1)


def both(*ordinals):
    """Instances of ranks 0 and 1 by ordinal."""
    return [[(0, a), (1, b)] for a, b in ordinals]


def test_sequence_numbers_decide_whatever_the_order_and_the_window():
    ops = matched(
        {
            0: [comm(0, 1, 0, seq=5), comm(2, 1, 0, seq=6), comm(4, 1, 0, seq=7)],
            1: [comm(0, 1, 0, seq=6), comm(2, 1, 0, seq=7), comm(4, 1, 0, seq=8)],
        },
        PAIR,
    )
    assert partners(ops) == both((1, 0), (2, 1))
    assert (ops.unmatched, ops.mismatched) == (2, 0)


def test_coalesced_calls_of_one_number_match_by_order():
    rows = [comm(0, 1, 0, seq=5), comm(2, 1, 0, seq=5), comm(4, 1, 0, seq=6)]
    assert partners(matched({0: rows, 1: rows}, PAIR)) == both((0, 0), (1, 1), (2, 2))


def test_a_lost_number_shifts_no_other_call():
    def calls(lost):
        return [comm(2 * n, 1, 0, seq=None if n == lost else n) for n in range(8)]

    ops = matched({0: calls(2), 1: calls(5)}, PAIR)
    assert partners(ops) == [[(0, n), (1, n)] for n in range(8) if n not in {2, 5}]


def test_without_sequence_numbers_the_ordinal_in_the_step_decides():
    full = [step(0, 0, 10), step(1, 10, 10), comm(1, 1, 0), comm(5, 1, 0), comm(11, 1, 0), comm(15, 1, 0)]
    late = [step(0, 4, 6), step(1, 10, 10), comm(5, 1, 0), comm(11, 1, 0), comm(15, 1, 0)]
    assert partners(matched({0: full, 1: late}, PAIR)) == both((1, 0), (2, 1), (3, 2))


def test_a_first_step_cut_short_lacks_its_end():
    """Another that begins there would lack the begin, and a job of one step shows neither."""
    full = [step(0, 0, 10), step(1, 10, 10), comm(1, 1, 0), comm(5, 1, 0), comm(8, 1, 0), comm(15, 1, 0)]
    cut = [step(0, 0, 10), comm(1, 1, 0), comm(5, 1, 0)]
    assert partners(matched({0: full, 1: cut}, PAIR)) == both((0, 0), (1, 1))
    assert partners(matched({0: full, 1: [*cut, step(1, 10, 10), comm(15, 1, 0)]}, PAIR)) == both(
        (1, 0), (2, 1), (3, 2)
    )


def issued(*calls):
    """Rows of a step whose `calls` (kind, stream, begin) a host issued in that order; those with "-" have no launch."""
    rows = [step(0, 0, 400)]
    for n, (kind, stream, begin) in enumerate(calls):
        rows += [] if kind.startswith("-") else [launch(10 + n, n)]
        rows.append(comm(begin, 5, 0, kind.strip("-"), stream=stream, correlation=n))
    return rows


def test_calls_on_two_streams_match_by_issue():
    kinds = [("reduce_scatter", 8), ("allgather", 7)] * 2
    one = issued(*((*k, t) for k, t in zip(kinds, [40, 30, 60, 50], strict=True)))  # begin G R G R
    two = issued(*((*k, t) for k, t in zip(kinds, [140, 30, 160, 50], strict=True)))  # begin G G R R
    ops = matched({0: one, 1: two}, PAIR)
    assert partners(ops) == both((0, 0), (1, 2), (2, 1), (3, 3))
    assert (ops.unmatched, ops.mismatched) == (0, 0)


def test_one_kind_on_two_streams_matches_by_issue():
    one = issued(("allgather", 7, 30), ("allgather", 8, 60), ("allgather", 7, 90))
    two = issued(("allgather", 7, 30), ("allgather", 8, 160), ("allgather", 7, 90))
    assert partners(matched({0: one, 1: two}, PAIR)) == both((0, 0), (1, 2), (2, 1))


def test_a_call_without_launch_keeps_its_place():
    kinds = ["allgather", "reduce_scatter", "allreduce"]
    whole = issued(*((kind, 7, 30 + 10 * n) for n, kind in enumerate(kinds)))
    lost = issued(("allgather", 7, 30), ("-reduce_scatter", 7, 40), ("allreduce", 7, 50))
    ops = matched({0: whole, 1: lost}, PAIR)
    assert partners(ops) == both((0, 0), (1, 1), (2, 2))
    assert ops.mismatched == 0


def test_a_cut_tail_keeps_matches_in_order():
    full = [step(0, 0, 10), step(1, 10, 10), comm(1, 1, 0), comm(5, 1, 0), comm(11, 1, 0), comm(15, 1, 0)]
    cut = full[:-1]
    assert partners(matched({0: full, 1: cut}, PAIR)) == both((0, 0), (1, 1), (2, 2))


@pytest.mark.parametrize("lost", [1, 2, 3])
@pytest.mark.parametrize("clock", [0, 1e6])
def test_ragged_windows_without_steps_are_aligned_by_their_ends(lost, clock):
    gaps = [3, 11, 4, 19, 8, 6, 14, 5]
    begin = [sum(gaps[:i]) for i in range(len(gaps))]
    full = [comm(t, 1, 0) for t in begin]
    ragged = [comm(clock + t, 1, 0) for t in begin[lost:]]
    ops = matched({0: full, 1: ragged}, PAIR)
    assert partners(ops) == both(*((lost + i, i) for i in range(len(ragged))))
    assert ops.unmatched == lost


def test_kinds_decide_a_shift_that_times_leave_open():
    kinds = ["allreduce", "allgather", "reduce_scatter", "allgather", "allreduce"]
    full = [comm(10 * i, 1, 0, k) for i, k in enumerate(kinds)]
    ops = matched({0: full, 1: [comm(10 * i, 1, 0, k) for i, k in enumerate(kinds[2:])]}, PAIR)
    assert partners(ops) == both((2, 0), (3, 1), (4, 2))


def test_lost_arguments_do_not_speak_against_a_shift():
    """Torch drops arguments at random: what the right shift puts together then differs in its tokens."""
    ends = [10, 21, 30, 43, 50, 61, 74, 80]
    full = [comm(at - 2, 2, 0, nelems=-1 if at in {30, 61} else 8) for at in ends]
    cut = [comm(at - 1, 1, 0, nelems=-1 if at in {43, 74} else 8) for at in ends[1:]]
    ops = matched({0: full, 1: cut}, PAIR)
    assert partners(ops) == both(*((i + 1, i) for i in range(7)))


def test_operations_before_and_after_all_steps_stay_apart():
    inside = [step(0, 0, 10), step(1, 10, 10), comm(1, 1, 0), comm(11, 1, 0)]
    early, late = [comm(-5, 1, 0), comm(-3, 1, 0), *inside], [*inside, comm(21, 1, 0)]
    assert partners(matched({0: early, 1: late}, PAIR)) == both((2, 0), (3, 1))
    assert partners(matched({0: early, 1: [comm(-3, 1, 0), *inside]}, PAIR)) == both((1, 0), (2, 1), (3, 2))
    more = [*late, comm(23, 1, 0)]
    assert partners(matched({0: more, 1: late}, PAIR)) == both((0, 0), (1, 1), (2, 2))


def test_operations_between_those_of_a_step_stay_apart():
    """Where labels alternate, two operations outside all steps stand behind the same step."""
    labels = np.array([1, -1, 1, -1, -1])
    told = np.zeros(10, np.int64), np.zeros(10, np.int64), (["send"], np.zeros(10, np.int32))
    keys = instance_keys([np.arange(5), np.arange(5, 10)], True, np.tile(labels, 2), *told)
    assert len(np.unique(keys[0])) == 5
    assert (keys[0] == keys[1]).all()


def test_messages_match_by_source_destination_and_order():
    ops = matched(
        {
            0: [send(0, 1, 0, 1), send(2, 1, 0, 2), send(4, 1, 0, 1)],
            1: [recv(0, 1, 0, 1), recv(4, 1, 0, 1), recv(6, 1, 2, 1)],
            2: [send(0, 1, 2, 1), recv(2, 1, 0, 2)],
        },
        group(0, 0, 1, 2),
    )
    assert partners(ops) == [[(0, 0), (1, 0)], [(0, 1), (2, 1)], [(0, 2), (1, 1)], [(1, 2), (2, 0)]]
    assert all(c.p2p for c in ops.channels)
    assert sorted(c.members for c in ops.channels) == [(0, 1), (0, 2), (2, 1)]


def test_members_that_call_different_collectives_are_dropped_and_counted():
    ops = matched({0: [comm(0, 1, 0, "allreduce", seq=1)], 1: [comm(0, 1, 0, "allgather", seq=1)]}, PAIR)
    assert partners(ops) == []
    assert (ops.mismatched, ops.unmatched) == (2, 0)


def test_element_counts_may_differ_among_members():
    rows = {r: [comm(0, 1, 0, "all_to_allv", seq=1, nelems=100 * (r + 1))] for r in (0, 1)}
    assert partners(matched(rows, PAIR)) == both((0, 0))


def test_a_group_of_three_matches_missing_one_member():
    ops = matched({0: [comm(0, 1, 0, seq=1)], 2: [comm(0, 1, 0, seq=1)]}, group(0, 0, 1, 2))
    assert partners(ops) == [[(0, 0), (2, 0)]]
    assert ops.channels[0].members == (0, 1, 2)


def test_what_only_one_rank_recorded_is_counted():
    assert matched({0: [comm(0, 1, 0, seq=1)], 1: [gemm(0, 1)]}, PAIR).unmatched == 1


def test_without_any_group_the_world_is_the_group():
    rows = [comm(0, 1, None), comm(5, 1, None)]
    ops = matched({0: rows, 1: rows, 2: rows})
    assert partners(ops) == [[(0, i), (1, i), (2, i)] for i in range(2)]


def test_an_operation_with_cut_members_matches_nobody():
    ops = matched({0: [comm(0, 1, None), comm(2, 1, 0)], 1: [comm(0, 1, None), comm(2, 1, 0)]}, PAIR)
    assert partners(ops) == both((1, 1))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from(["allreduce", "allgather"]), min_size=1, max_size=12),
    st.integers(-(10**6), 10**6),
)
def test_equal_sequences_match_one_to_one_by_any_clock(kinds, clock):
    mine = [comm(10 * i, 1, 0, k) for i, k in enumerate(kinds)]
    theirs = [comm(2e6 + clock + 10 * i, 1, 0, k) for i, k in enumerate(kinds)]
    ops = matched({0: mine, 1: theirs}, PAIR)
    assert partners(ops) == both(*((i, i) for i in range(len(kinds))))
    assert (ops.unmatched, ops.mismatched) == (0, 0)


def test_one_counter_for_all_calls_is_no_key():
    """Rank 1 sends twice as often as rank 0 receives here, so the shared counter runs ahead of the other one's."""
    world = group(0, 0, 1, 2)
    told = {"src_rank": 1}
    rows = {
        0: [comm(0, 1, 0, "recv", seq=1, **told), comm(2, 1, 0, seq=2), comm(8, 1, 0, seq=3)],
        1: [
            comm(0, 1, 0, "send", seq=1, dst_rank=0),
            comm(1, 0.5, 0, "send", seq=2, dst_rank=2),
            comm(2, 1, 0, seq=3),
            comm(8, 1, 0, seq=4),
        ],
        2: [comm(0, 1, 0, "recv", seq=1, **told), comm(2, 1, 0, seq=2), comm(8, 1, 0, seq=3)],
    }
    found = partners(matched(rows, world))
    assert [(0, 1), (1, 2), (2, 1)] in found
    assert [(0, 2), (1, 3), (2, 2)] in found


def test_messages_of_two_groups_between_two_ranks_stay_apart():
    """The receiver asks for the message of the second group first."""
    pair, world = group(0, 0, 1), group(1, 0, 1, 2)
    here = [send(0, 1, 0, 1) | {"group": 0}, send(2, 1, 0, 1) | {"group": 1}]
    there = [recv(0, 3, 0, 1) | {"group": 1}, recv(4, 1, 0, 1) | {"group": 0}]
    assert partners(matched({0: here, 1: there}, pair, world)) == both((0, 1), (1, 0))


def test_a_message_takes_the_group_that_others_name():
    here = [send(0, 1, 0, 1) | {"group": 0}, send(2, 1, 0, 1) | {"group": 0}]
    there = [recv(0, 1, 0, 1), recv(2, 1, 0, 1) | {"group": 0}]
    assert partners(matched({0: here, 1: there}, PAIR)) == both((0, 0), (1, 1))


@pytest.mark.parametrize("lost", [0, 2, 4])
def test_sizes_tell_which_message_of_a_step_was_lost(lost):
    sizes = [64, 32, 16, 64, 8]
    rows = [(3.0 * i + 1, n) for i, n in enumerate(sizes)]
    here = [step(0, 0, 20), *(send(t, 1, 0, 1, nelems=n) for t, n in rows)]
    there = [step(0, 0, 20), *(recv(t, 1, 0, 1, nelems=n) for i, (t, n) in enumerate(rows) if i != lost)]
    kept = [i for i in range(len(sizes)) if i != lost]
    ops = matched({0: here, 1: there}, PAIR)
    assert partners(ops) == both(*((i, place) for place, i in enumerate(kept)))
    assert (ops.unmatched, ops.mismatched) == (1, 0)


def test_messages_of_different_sizes_are_never_one():
    ops = matched({0: [send(0, 1, 0, 1, nelems=64)], 1: [recv(0, 1, 0, 1, nelems=32)]}, PAIR)
    assert (partners(ops), ops.unmatched) == ([], 2)
