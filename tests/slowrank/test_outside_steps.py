"""A device that was slow only in what windows hold beside the whole steps leaves health open."""

from dataclasses import replace

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.slowrank.jobs import grid, job, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.analysis.slowrank.decision.decide import of_their_steps
from tracekit.steps import step_kernels as sk

MESH = grid(tp=2, dp=4)


def cut(run, number, kept=1.0, whole=()):
    """`run` without the mark of a step, at an end of the recording; ranks outside `whole` kept that share of it."""
    for record in run.ranks:
        table = pq.read_table(run.folder / record.table)
        name = table.column("name")
        mark = table.filter(pc.equal(name, f"ProfilerStep#{number}"))
        begin, lasted = mark.column("ts")[0].as_py(), mark.column("dur")[0].as_py()
        table = table.filter(pc.not_equal(name, f"ProfilerStep#{number}"))
        ts = table.column("ts")
        part = 1.0 if record.rank in whole else kept * (1 - 0.1 * (record.rank % 3))
        lost = round(lasted * (1 - part))
        inside = (
            pc.greater_equal(ts, begin + lost) if number == 0 else pc.less(ts, begin + lasted - lost)
        )  # ranks begin and end to record at different times
        pq.write_table(table.filter(inside), run.folder / record.table)
    return run


@pytest.mark.parametrize("number", [0, 3])
def test_a_device_slow_beside_whole_steps_leaves_it_open(tmp_path, number):
    run = job(tmp_path, MESH, slow={5: 1.25}, slow_steps={number}, steps=4, layers=8)
    found = analyse(cut(run, number, 0.7))
    assert (found.verdict, [c.rank for c in found.candidates]) == ("inconclusive", [5])
    assert ("before the first whole" if number == 0 else "after the last whole") in found.reason
    assert found.candidates[0].lost_ms_low == 0 < found.candidates[0].lost_ms_high


@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_one_peer_and_other_steps_show_it(tmp_path, factor):
    """A stage of two ranks: the kernels are longer than the peer's, and than those of the rank's own steps."""
    run = job(tmp_path, grid(dp=2), slow={1: factor}, slow_steps={0}, steps=4, layers=16)
    found = analyse(cut(run, 0, 0.7))
    expected = ("inconclusive", [1]) if factor > 1 else ("healthy", [])
    assert (found.verdict, [c.rank for c in found.candidates]) == expected


def test_parts_longer_than_a_step_are_divided(tmp_path):
    """Only the later one of two steps that are not marked is slow, by less than both together show."""
    run = job(tmp_path, MESH, slow={5: 1.04}, slow_steps={1}, steps=5, layers=8)
    for record in run.ranks:
        table = pq.read_table(run.folder / record.table)
        pq.write_table(
            table.filter(pc.not_equal(table.column("name"), "ProfilerStep#1")), run.folder / record.table
        )
    found = analyse(cut(run, 0, 0.9))
    assert (found.verdict, [c.rank for c in found.candidates]) == ("inconclusive", [5])


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("extra_us", [0.0, 3000.0])
@pytest.mark.quick(1)
def test_parts_without_a_slow_device_are_no_doubt(tmp_path, number, extra_us):
    """One long kernel in what was cut, as of a profiler that starts, is no slow device."""
    run = job(tmp_path, MESH, accident=(5, number, extra_us), steps=4, layers=8)
    assert analyse(cut(run, number)).verdict == "healthy"


@pytest.mark.parametrize("number", [0, 3])
@pytest.mark.parametrize("factor", [1.0, 1.25])
@pytest.mark.quick(2)
def test_a_step_of_one_rank_is_compared_with_others(tmp_path, number, factor):
    run = job(tmp_path, MESH, slow={5: factor}, slow_steps={number}, steps=4, layers=8)
    found = analyse(cut(run, number, 0.02, whole=(5,)))
    slow = factor > 1
    assert (found.verdict, [c.rank for c in found.candidates]) == (
        ("inconclusive", [5]) if slow else ("healthy", [])
    )
    assert ("whole step are longer" in found.reason) == slow


def paused_in(folder, steps):
    """A rank's device stands still for 3 ms in the middle of `steps`, of three."""
    return job(
        folder, MESH, idle=lambda rank, step: 3000.0 * (rank == 5 and step in steps), idle_before=4,
        steps=3, layers=8,
    )  # fmt: skip


@pytest.mark.parametrize(("steps", "verdict"), [((0, 1, 2), "slow_rank"), ((1,), "inconclusive")])
def test_a_pause_recurs_beside_the_only_step(tmp_path, steps, verdict):
    """The rank is as late in the parts of steps that windows cut, or there was an accident in the whole one."""
    found = analyse(cut(cut(paused_in(tmp_path, steps), 0, 0.9), 2, 0.9))
    assert (found.verdict, [s.rank for s in (*found.suspects, *found.candidates)]) == (verdict, [5])
    if verdict == "slow_rank":
        assert found.suspects[0].lost_ms_per_step == pytest.approx(3.0, rel=0.1)
        assert "beside the compared steps" in found.reason


@pytest.mark.parametrize("slow", [{5}, set()])
def test_steps_that_a_slow_rank_lacks_have_no_price(tmp_path, slow):
    """A rank that is slow in one step recorded another one in part: what it costs there is unknown."""
    case = prepared(paused_in(tmp_path, (0, 1, 2)), MESH)
    own = case.steps.own.copy()
    own[5, 2] = np.nan
    found = replace(case.found, throughout=frozenset(slow))
    case = replace(case, steps=replace(case.steps, own=own), found=found)
    assert of_their_steps(case).steps.numbers == ((0, 1) if slow else (0, 1, 2))


@pytest.mark.parametrize("back", [True, False])
def test_operations_out_of_order_add_no_own_time(tmp_path, back):
    """An operation issued behind others, which runs before them or after them, stretches no part of the step."""
    case = prepared(job(tmp_path, MESH, steps=2, layers=8), MESH)
    source = case.ops.per_rank[5]
    of_step = np.flatnonzero(case.ops.step[case.ops.of(5)] == 0)
    usual = sk._course(case.ops, case.steps, 5, 0, back=back, messages=False)[1]
    issued = source.issued.copy()
    issued[of_step[2]], issued[of_step[-3]] = issued[of_step[-3]], issued[of_step[2]]
    ops = replace(case.ops, per_rank={**case.ops.per_rank, 5: replace(source, issued=issued)})
    swapped = sk._course(ops, case.steps, 5, 0, back=back, messages=False)[1]
    assert (np.diff(swapped) >= 0).all()
    assert (swapped <= usual).all()
