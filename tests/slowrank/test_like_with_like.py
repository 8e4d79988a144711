"""Tokens that experts were dealt and communication beside kernels make a rank longer, and not slow."""

from dataclasses import replace

import numpy as np
import pytest

from tests.slowrank.events import Timeline, write_run
from tests.slowrank.jobs import grid, prepared
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.expected import contention as beside_communication
from tracekit.steps.dealt_tokens import dealt_tokens

RANKS, STEPS, LAYERS = 4, 4, 6
WORLD, SIDE = 0, 1
LIKED = (1.3, 0.9, 1.0, 0.8)
"""Tokens of each rank's experts, over an even share."""


def together(lines, post, us, more=lambda rank, back: {}, back=False):
    """A collective of all `lines`; `more` are its further columns by rank."""
    handles = {line.rank: post(line) for line in lines}
    end = max(handle[0] for handle in handles.values()) + us
    for line in lines:
        line.finish(handles[line.rank], end, **more(line.rank, back))


def experts(folder, *, slow=(), sizes=True, pauses=(), once=(), counted=False):
    """Dense work, tokens to experts, their work, tokens back; the same experts are liked in all steps.

    The hosts of `pauses` wait before they launch the experts; ranks in `once` are slow in the first step alone. If
    `counted`, a third all-to-all before the tokens carries their number.
    """
    lines = [Timeline(rank) for rank in range(RANKS)]
    random = np.random.default_rng(5)

    def moved(rank, back):
        taken = 1000 if back else round(1000 * share[rank])
        return (
            {"in_nelems": round(1000 * share[rank]) if back else 1000, "out_nelems": taken} if sizes else {}
        )

    for step in range(STEPS):
        begins = [line.at for line in lines]
        for _ in range(LAYERS):
            share = np.array(LIKED) * random.uniform(0.95, 1.05, RANKS)
            for line in lines:
                line.compute(1000 * (1.25 if line.rank in slow else 1))
            if counted:
                together(lines, lambda line: line.post(WORLD, "all_to_all"), 10)
            together(lines, lambda line: line.post(WORLD, "all_to_all"), 50, moved)
            for line in lines:
                line.at += 900 if line.rank in pauses else 0
                line.compute(600 * share[line.rank] * (1.25 if line.rank in slow else 1))
                line.compute(2000 if line.rank in once and not step else 0)
            together(lines, lambda line: line.post(WORLD, "all_to_all"), 50, moved, back=True)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    return write_run(folder, lines, {WORLD: tuple(range(RANKS))}, {WORLD: "mesh_dp"}, RANKS)


def overlapped(folder, *, slow=(), stretch=1.3):
    """Ranks 1 and 3 communicate beside every second kernel, which takes `stretch` times as long there."""
    lines = [Timeline(rank) for rank in range(RANKS)]
    for step in range(STEPS):
        begins = [line.at for line in lines]
        for layer in range(LAYERS):
            for line in lines:
                line.compute(1000 * (1.25 if line.rank in slow else 1))
                beside = line.rank % 2 == 1
                us = 1000 * (stretch if beside else 1) * (1.25 if line.rank in slow else 1)
                if beside:
                    line.beside(SIDE, us, step * LAYERS + layer)
                line.compute(us)
            together(lines, lambda line: line.post(WORLD), 50)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    groups = {WORLD: tuple(range(RANKS)), SIDE: (1, 3)}
    return write_run(folder, lines, groups, {WORLD: "mesh_dp", SIDE: "side"}, RANKS)


def test_liked_experts_are_an_imbalance(tmp_path):
    found = analyse(experts(tmp_path))
    assert (found.verdict, found.cause, found.suspects) == ("imbalance", "data_imbalance", ())


@pytest.mark.quick(1)
@pytest.mark.parametrize("rank", range(RANKS))
def test_slow_rank_is_named_beside_liked_experts(tmp_path, rank):
    found = analyse(experts(tmp_path, slow={rank}))
    assert found.verdict == "slow_rank"
    assert [s.rank for s in found.suspects] == [rank]


def test_collectives_of_unknown_kind_may_deal_tokens(tmp_path):
    case = prepared(experts(tmp_path, sizes=False), grid(dp=RANKS))
    unknown = replace(case.ops, kinds=(["collective"], np.zeros_like(case.ops.kinds[1])))
    untold = dealt_tokens(unknown, case.steps, case.stages).of_unknown_size
    assert (untold[0] > 0.02 * case.step_ns).all()
    assert (untold[3] < 0.01 * case.step_ns).all()


def test_compute_beside_a_collective_follows_no_tokens(tmp_path):
    """Gradients are reduced in two buckets; the peers compute the second one while the first waits for rank 3."""
    lines = [Timeline(rank) for rank in range(RANKS)]
    for step in range(STEPS):
        begins = [line.at for line in lines]
        work = {line.rank: 1.25 if line.rank == 3 else 1.0 for line in lines}
        for line in lines:
            line.compute(10_000 * work[line.rank])
        end = max(line.at for line in lines) + 50
        for line in lines:
            line.beside(SIDE, end - line.at, step, op="all_reduce")
            line.compute(2_000 * work[line.rank])
            line.at = max(line.at, end)
        together(lines, lambda line: line.post(WORLD), 50)
        for line, begin in zip(lines, begins, strict=True):
            line.step(step, begin)
    everybody = tuple(range(RANKS))
    run = write_run(
        tmp_path, lines, {WORLD: everybody, SIDE: everybody}, {WORLD: "mesh_dp", SIDE: "side"}, RANKS
    )
    case = prepared(run, grid(dp=RANKS))
    unknown = replace(case.ops, kinds=(["collective"], np.zeros_like(case.ops.kinds[1])))
    untold = dealt_tokens(unknown, case.steps, case.stages).of_unknown_size
    assert untold.max() < 0.01 * case.step_ns


@pytest.mark.parametrize("counted", [False, True])
def test_unrecorded_sizes_leave_liked_experts_open(tmp_path, counted):
    found = analyse(experts(tmp_path, sizes=False, counted=counted))
    assert found.verdict == "inconclusive"
    assert "sizes" in found.to_decide


def test_pausing_host_is_no_liked_expert(tmp_path):
    """The time behind every second all-to-all is longer, but the device stands still in it."""
    found = analyse(experts(tmp_path, sizes=False, pauses={3}))
    assert (found.verdict, found.suspects[0].rank) == ("slow_rank", 3)


def test_tokens_do_not_hide_what_happened_once(tmp_path):
    found = analyse(experts(tmp_path, once={3}), steps=((0, 2),))
    assert found.verdict == "inconclusive"
    assert [c.rank for c in found.candidates] == [3]


@pytest.mark.parametrize("counted", [False, True])
def test_slow_rank_is_named_without_sizes(tmp_path, counted):
    found = analyse(experts(tmp_path, slow={3}, sizes=False, counted=counted))
    assert next(s.rank for s in (*found.suspects, *found.candidates)) == 3


def test_kernels_beside_communication_make_nobody_slow(tmp_path):
    found = analyse(overlapped(tmp_path))
    assert found.verdict == "healthy"
    assert "communication that they do not have" in found.reason


@pytest.mark.quick(1)
@pytest.mark.parametrize("rank", range(RANKS))
def test_slow_rank_is_named_beside_communication(tmp_path, rank):
    case = prepared(overlapped(tmp_path, slow={rank}), grid(dp=RANKS))
    found = analyse(case.run)
    assert [s.rank for s in found.suspects] == [rank]
    if rank % 2:
        assert case.found.mean[rank] == pytest.approx(LAYERS * 500_000, rel=0.05)


def test_kernels_without_length_tell_no_speed():
    table = np.array([[[[0.0, 0.0]]], [[[9.0, 0.0]]], [[[9.0, 0.0]]]])
    assert beside_communication._at_one_speed({"k": table})["k"].tolist() == table.tolist()


def test_only_lost_sizes_leave_work_open(tmp_path):
    """A rank whose every tenth size is lost has tokens to thank for little of its work."""
    told = prepared(experts(tmp_path), grid(dp=RANKS))
    case = prepared(experts(tmp_path, sizes=False), grid(dp=RANKS))
    none = dealt_tokens(case.ops, case.steps, case.stages).of_unknown_size
    for rank, ops in told.ops.per_rank.items():
        taken = ops.taken.copy()
        taken[rank::20] = -1
        told.ops.per_rank[rank] = replace(ops, taken=taken)
    some = dealt_tokens(told.ops, told.steps, told.stages).of_unknown_size
    assert 0 < some[0].sum() < 0.3 * none[0].sum()


def test_uneven_tokens_of_stages_add_up(tmp_path):
    """A micro-batch passes through all stages, and waits for the rank with most tokens of each."""
    case = prepared(experts(tmp_path), grid(dp=RANKS))
    halves = [np.array([0, 1]), np.array([2, 3])]
    alone = [dealt_tokens(case.ops, case.steps, [half]).lost_ns for half in halves]
    assert min(alone) > 0
    assert dealt_tokens(case.ops, case.steps, halves).lost_ns == pytest.approx(sum(alone))
