"""Posts and needs of a rank: false needs are left out, and queued collectives are put where they were ready."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.slowrank.jobs import grid
from tests.tables.rows import comm, gemm, group, launch, matched, step
from tracekit.step_graph.collective_queue import queue_of
from tracekit.step_graph.rank_timeline import NEED, POST, _really_needed, posts_and_needs
from tracekit.steps.steps import measure
from tracekit.store import Run
from tracekit.timing.measured import measure_run

US = 1000.0
RUN = Run(Path(), (), (), (), (), 2)


@pytest.mark.parametrize(
    ("post_us", "own_us", "kept"),
    [
        (5.0, 0.0, [False, True]),  # outstanding already when the first one ended
        (5.0, 40.0, [True, True]),  # work was done in between: it had been waited for
        (120.0, 0.0, [True, True]),  # posted in answer to the end of the first one
    ],
)
def test_operations_ending_during_another_wait_delay_nobody(post_us, own_us, kept):
    """Operation A ends at 100 µs, B at 300 µs."""
    wall = np.array([0.0, 100.0, 300.0, post_us]) * US
    order = np.argsort(wall)
    kind = np.array([POST, NEED, NEED, POST])[order]
    reading = np.array([0.0, 0.0, own_us, 0.0])[order] * US
    posted = np.array([0.0, 0.0, post_us, post_us])[order] * US
    found = _really_needed(kind, reading, wall[order], posted, np.arange(4))
    assert found[kind == NEED].tolist() == kept
    assert found[kind == POST].all()


def test_waits_within_the_longest_of_several_delay_nobody():
    """A and B end at 100 and 200 µs, while C, posted first, lasts until 300 µs, and D follows C on its stream."""
    wall = np.array([0.0, 5.0, 6.0, 100.0, 200.0, 299.0, 300.0, 310.0]) * US
    kind = np.array([POST, POST, POST, NEED, NEED, POST, NEED, NEED])
    operation = np.array([2, 0, 1, 0, 1, 3, 2, 3])
    posted = np.array([5.0, 6.0, 0.0, 299.0])[operation] * US
    found = _really_needed(kind, np.zeros(8), wall, posted, operation)
    assert found[kind == NEED].tolist() == [False, False, False, True]


def test_a_post_after_the_last_wait_answers_that_wait():
    """A ends at 100 µs and B at 120 µs; what is posted at 130 µs answers B."""
    wall = np.array([0.0, 5.0, 100.0, 120.0, 130.0]) * US
    kind = np.array([POST, POST, NEED, NEED, POST])
    found = _really_needed(kind, np.zeros(5), wall, wall[[0, 1, 0, 1, 4]], np.arange(5))
    assert found.tolist() == [True, True, False, True, True]


def test_a_collective_queued_behind_lateness_was_ready_before():
    """Rank 1 comes 300 µs late to the first of two, half through its work; rank 0 works on meanwhile."""
    first = [
        step(0, 0, 870),
        gemm(0, 100),
        comm(100, 320, 0),
        gemm(100, 300),
        comm(420, 20, 0),
        gemm(440, 100),
    ]
    late = [step(0, 0, 870), gemm(0, 400), comm(400, 20, 0), gemm(405, 13), comm(420, 20, 0), gemm(440, 400)]
    ops = matched(
        {0: [*first, comm(540, 320, 0)], 1: [*late, comm(840, 20, 0)]},
        group(0, 0, 1),
    )
    queue = queue_of(replace(measure_run(RUN, ops, grid(dp=2), None), steps=measure(ops)))
    assert queue.before.tolist() == [-1, 0, 1]
    mine = ops.of(0)
    _, second, _ = queue.ready[mine]
    assert ops.at_start[mine].tolist() == [100 * US, 400 * US, 500 * US]
    assert second == pytest.approx(250 * US, rel=0.05)
    assert queue.ready[ops.of(1)].tolist() == ops.at_start[ops.of(1)].tolist()


def test_collectives_that_all_members_queue_were_ready_evenly():
    """Three transfers of 300 µs each follow 100 µs of work each: the last two stand in everybody's queue."""
    rows = [
        step(0, 0, 1100),
        *(gemm(100 * n, 100) for n in range(3)),
        *(comm(100 + 300 * n, 300, 0) for n in range(3)),
    ]
    rows.append(gemm(1000, 100))
    ops = matched({0: rows, 1: rows}, group(0, 0, 1))
    queue = queue_of(replace(measure_run(RUN, ops, grid(dp=2), None), steps=measure(ops)))
    for rank in (0, 1):
        assert ops.at_start[ops.of(rank)].tolist() == [100 * US, 300 * US, 300 * US]
        assert queue.ready[ops.of(rank)].tolist() == [100 * US, 200 * US, 300 * US]


@pytest.mark.parametrize("beside", [False, True])
def test_a_communicator_runs_in_order_across_streams(beside):
    """A gather and a scatter of one group on two streams queue behind each other, unless two of them run at once."""
    calls = [(100, 300, 80), (400, 20, 84), *([(500, 60, 80), (530, 40, 84)] if beside else [(500, 60, 80)])]
    kernels = [comm(b, us, 0, stream=s, correlation=n) for n, (b, us, s) in enumerate(calls)]
    launches = [launch(80 + n, n) for n in range(len(calls))]
    work = [gemm(0, 70, stream=7, correlation=20), gemm(110, 280, stream=7, correlation=21)]
    rows = [step(0, 0, 900), *work, launch(-5, 20), launch(95, 21), *launches, *kernels]
    late = [comm(400, 20, 0), comm(420, 10, 0), *(comm(500 + 70 * n, 60, 0) for n in range(len(calls) - 2))]
    ops = matched({0: rows, 1: [step(0, 0, 900), gemm(0, 380), *late]}, group(0, 0, 1))
    queue = queue_of(replace(measure_run(RUN, ops, grid(dp=2), None), steps=measure(ops)))
    began, ready = ops.at_start[ops.of(0)][1], queue.ready[ops.of(0)][1]
    assert ready == (began if beside else pytest.approx(began - 300 * US, abs=30 * US))


def shards_and_replicas(until, launched, begin=402):
    """Ranks 0 and 1 scatter by pairs of shards (0 2, 1 3); then replicas (0 1) reduce, by kernels `launched` early."""
    work = [gemm(0, 100, correlation=1), gemm(110, until - 110, correlation=2), gemm(500, 300, correlation=5)]
    calls = [comm(100, 300, 0, stream=84, correlation=3), comm(begin, 60, 2, stream=88, correlation=4)]
    other = [comm(100, 300, 1, stream=84, correlation=3), comm(begin, 60, 2, stream=88, correlation=4)]
    launches = [launch(when, n) for when, n in ((-8, 1), (-6, 3), (launched, 4), (70, 2), (80, 5))]
    mine = [step(0, 0, 900), *work, *launches]
    late = [[step(0, 0, 900), gemm(0, 390), comm(390, 10, n)] for n in range(2)]
    ranks = {0: [*mine, *calls], 1: [*mine, *other], 2: late[0], 3: late[1]}
    ops = matched(ranks, group(0, 0, 2), group(1, 1, 3), group(2, 0, 1))
    return ops, queue_of(replace(measure_run(RUN, ops, grid(dp=4), None), steps=measure(ops)))


@pytest.mark.parametrize("until", [480, 390])
def test_a_collective_waits_for_all_its_shards(until):
    """Whether compute stands still for the scatters or not, the reduction starts behind those of all its members."""
    ops, queue = shards_and_replicas(until, 50)
    scatters, reduce = [int(ops.instance[ops.of(r)][0]) for r in (0, 1)], int(ops.instance[ops.of(0)][1])
    assert queue.caused.T.tolist() == [[reduce, scatter] for scatter in sorted(scatters)]
    assert queue.ready[ops.of(0)][1] < ops.at_start[ops.of(0)][1]


def test_a_late_launch_has_no_cause():
    ops, queue = shards_and_replicas(480, 395)
    assert not queue.caused.size
    assert queue.ready[ops.of(0)][1] == ops.at_start[ops.of(0)][1]


@pytest.mark.parametrize(("stream", "follows"), [(84, True), (88, False)])
def test_a_stream_runs_in_order(stream, follows):
    """On one stream the next group's collective starts a little behind the one before it, and waits for it."""
    work = [gemm(0, 100, correlation=1), gemm(110, 370, correlation=2)]
    calls = [comm(100, 300, 0, stream=84, correlation=3), comm(415, 60, 1, stream=stream, correlation=4)]
    launches = [launch(when, n) for when, n in ((-8, 1), (-6, 3), (50, 4), (70, 2))]
    ranks = {0: [step(0, 0, 900), *work, *calls, *launches]}
    ranks |= {1: [step(0, 0, 900), gemm(0, 390), comm(390, 10, 0)]}
    ranks |= {2: [step(0, 0, 900), gemm(0, 390), comm(400, 75, 1)]}
    ops = matched(ranks, group(0, 0, 1), group(1, 0, 2))
    queue = queue_of(replace(measure_run(RUN, ops, grid(dp=3), None), steps=measure(ops)))
    assert bool(queue.caused.size) == follows


@pytest.mark.parametrize("launched", [-1.0, 350.0, 402.0])
def test_a_host_that_is_late_needs_the_communication(launched):
    """What its kernel needs ends while it loads: with a quicker loader the rank would wait for that."""
    work = [gemm(0, 100, correlation=1), comm(100, 300, 0, correlation=2), gemm(405, 50, correlation=3)]
    rows = [step(0, -20, 500), *work, launch(-10, 1), launch(-5, 2), launch(launched, 3)]
    ops = matched({0: rows, 1: [step(0, -20, 500), *work]}, group(0, 0, 1))
    queue = queue_of(replace(measure_run(RUN, ops, grid(dp=2), None), steps=measure(ops)))
    kinds, _, _ = posts_and_needs(ops, queue, np.arange(1), np.zeros(0, np.int64))
    assert kinds.tolist() == [POST, NEED]
