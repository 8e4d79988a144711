"""What hooks are told: calls nest, segments hold no communication, and every axis is announced."""

import time
from collections import Counter

import pytest
import torch

from reftrain.config.file import load
from reftrain.execute import emulated_compute
from reftrain.execute.emulated_compute import EmulatedCompute
from reftrain.rank.events import Segment
from reftrain.rank.hooks import HookList, Hooks
from tests.reftrain import workers
from tests.reftrain.layouts import FOUR_D

MODEL = {"layers": 2}


@pytest.fixture(scope="module")
def notes(ranks):
    config = load(None, {"mesh": FOUR_D, "model": MODEL, "data": {"batch_size": 8}})
    return ranks.run(workers.diary, 16, config)


@pytest.mark.slow
def test_calls_nest(notes):
    for of_rank in notes:
        stack = []
        for what, *about in of_rank:
            scope, _, edge = what.rpartition("_")
            if scope == "step":
                continue
            if edge == "begin":
                stack.append((scope, about))
            elif scope == "collective":  # a send and a receive of a ring begin and end together
                stack.remove((scope, about))
            else:
                assert stack.pop() == (scope, about)
        assert stack == []


@pytest.mark.slow
def test_segments_hold_no_communication_and_know_their_work(notes):
    for of_rank in notes:
        inside = False
        for what, *_ in of_rank:
            inside = what == "segment_begin" or (inside and what != "segment_end")
            assert not (inside and what.startswith("collective"))
        seen = Counter((n[1], n[2], n[3]) for n in of_rank if n[0] == "segment_begin")
        assert seen["optimizer", -1, "step"] == 1
        layers = {layer for _, layer, _ in seen if layer >= 0}
        assert len(layers) == 1, "each of two pipeline ranks holds one of two layers"
        for layer in layers:
            for name in ("qkv", "attention", "out", "ffn"):
                assert seen[name, layer, "forward"] == seen[name, layer, "backward"] == 4
        assert all(n[4] > 0 for n in of_rank if n[0] == "segment_begin" and n[1] != "optimizer")


def test_all_work_of_the_model_is_in_segments(notes):
    """Forward matrix work over all ranks is that of the whole model on the whole batch, attention apart."""
    done = sum(
        n[4]
        for of_rank in notes
        for n in of_rank
        if n[0] == "segment_begin" and n[3] == "forward" and n[1] != "attention"
    )
    layer = 64 * 8 * (8 + 2 * 4) + 64 * 64 + 3 * 64 * 128
    assert done == 2 * 8 * 64 * (2 * layer + 64 * 260)


def test_every_axis_is_announced(notes):
    axes = {(n[1], n[2]) for of_rank in notes for n in of_rank if n[0] == "collective_begin"}
    expected = {("tp", "all_gather"), ("tp", "reduce_scatter"), ("cp", "all_gather"), ("cp", "reduce_scatter"),
                ("pp", "send"), ("pp", "recv"), ("dp", "all_reduce"), ("dp_cp", "all_reduce")}  # fmt: skip
    assert expected <= axes
    sends = Counter(
        (r, n[4], n[3])
        for r, of_rank in enumerate(notes)
        for n in of_rank
        if n[:3] == ("collective_begin", "pp", "send")
    )
    assert sum(sends.values()) == 8 * 2 * 4
    assert set(sends.values()) == {1}


def test_attention_work_follows_the_documents(ranks):
    """The mask decides the work of a context rank: that is how documents make ranks uneven."""
    work = {}
    for masked in (True, False):
        config = load(
            None,
            {
                "mesh": {"cp": 2},
                "model": MODEL,
                "numerics": {"document_mask": masked},
                "data": {"batch_size": 2},
            },
        )
        notes = ranks.run(workers.diary, 2, config)
        work[masked] = [
            sum(
                n[4] for n in of_rank if n[0] == "segment_begin" and n[1] == "attention" and n[3] == "forward"
            )
            for of_rank in notes
        ]
    assert work[False][0] == work[False][1] == 2 * 2 * 4 * 8 * 8 * (64 * 65 // 2) // 2
    assert work[True][0] != work[True][1]
    assert max(work[True]) < work[False][0]


def test_a_ring_computes_block_by_block_between_exchanges(ranks):
    """As many segments as context ranks, the work of all together that of the gathered form, no exchange inside."""
    work = {}
    for method in ("all_gather", "ring"):
        config = load(
            None,
            {
                "mesh": {"cp": 4},
                "model": MODEL,
                "numerics": {"cp_method": method},
                "data": {"batch_size": 2},
            },
        )
        work[method] = []
        for of_rank in ranks.run(workers.diary, 4, config):
            flops = Counter()
            blocks = Counter()
            inside = False
            for what, *about in of_rank:
                inside = what == "segment_begin" or (inside and what != "segment_end")
                assert not (inside and what.startswith("collective"))
                if what == "segment_begin" and about[0] == "attention":
                    _, layer, phase, amount = about
                    flops[layer, phase] += amount
                    blocks[layer, phase] += 1
            assert set(blocks.values()) == {2 * (4 if method == "ring" else 1)}, "two micro-batches"
            assert set(blocks) == {(layer, phase) for layer in (0, 1) for phase in ("forward", "backward")}
            work[method].append(flops)
    assert work["ring"] == work["all_gather"]


def test_hooks_do_not_change_a_bit(ranks):
    config = load(None, {"mesh": {"tp": 2, "dp": 2}, "model": MODEL})
    plain = ranks.run(workers.losses, 4, config)
    assert plain == ranks.run(watched_losses, 4, config)


def watched_losses(rank, world, store, config):
    with workers.trainer(rank, world, store, config, HookList([workers.Diary()])) as made:
        out = []
        for step in range(config.steps):
            got = made.compute_gradients(step)
            made.apply_gradients(step, got.norm)
            out.append(got.loss)
        return out


def test_emulated_compute_sleeps_the_work():
    """The shortest of five, which a busy machine does not stretch."""
    emulated, forward, backward = EmulatedCompute(gflops=1.0), [], []
    for _ in range(5):
        begin = time.perf_counter()
        emulated.segment_end(Segment("ffn", 0, "forward", 20_000_000))
        between = time.perf_counter()
        emulated.segment_end(Segment("ffn", 0, "backward", 20_000_000))
        forward.append(between - begin)
        backward.append(time.perf_counter() - between)
    assert 0.02 <= min(forward) < 0.2
    assert 0.04 <= min(backward) < 0.3


@pytest.mark.parametrize(("name", "operator"), [("attention", "attention"), ("ffn", "matmul")])
def test_a_profiler_sees_emulated_computing_as_an_operator(name, operator):
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], acc_events=True
    ) as profiler:
        for _ in range(5):
            EmulatedCompute(gflops=1.0).segment_end(Segment(name, 0, "forward", 5_000_000))
    times = [e.cpu_time_total for e in profiler.events() if e.key == f"reftrain::emulated_{operator}"]
    assert len(times) == 5
    assert 5e3 <= min(times) < 5e4  # microseconds


def test_a_slow_emulated_device_runs_as_many_operators(monkeypatch):
    """They are longer, as those of a slow device are."""
    took = []
    monkeypatch.setattr(emulated_compute, "compute", lambda segment, seconds: took.append(seconds))
    for slowed in ([], [lambda seconds: 3 * seconds]):
        EmulatedCompute(1.0, slowed).segment_end(Segment("ffn", 0, "backward", 5_000_000))
    assert took == pytest.approx([0.01, 0.03])


def test_a_list_nests_its_hooks():
    order = []

    class Named(Hooks):
        def __init__(self, name):
            self.name = name

        def data_begin(self, step):
            order.append(f"{self.name} begin {step}")

        def data_end(self, step):
            order.append(f"{self.name} end {step}")

    both = HookList([Named("a"), Named("b")])
    both.data_begin(1)
    both.data_end(1)
    assert order == ["a begin 1", "b begin 1", "b end 1", "a end 1"]
