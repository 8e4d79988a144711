"""Planted faults act on the real execution: the rank meant is later, stops or dies, and no other."""

import os
import signal
import time
from dataclasses import dataclass, field

import pytest
import torch

from reftrain.config.fault_spec import parse_fault
from reftrain.config.file import load
from reftrain.faults import hangs, launch_bound, next_call, registry, slow
from reftrain.rank.events import CollectiveCall, Segment
from reftrain.rank.hooks import HookList, RunContext
from tests.reftrain import workers

SEGMENT = Segment("ffn", 0, "forward", 1)


@dataclass
class Grid:
    coords: dict[str, int]
    sizes: dict[str, int] = field(default_factory=lambda: {"tp": 1, "cp": 1, "pp": 2, "dp": 1})

    def coords_of(self, rank):
        return {"pp": rank}


def hook(text, rank, compute="emulated"):
    """The fault's hook as it stands on `rank` of two pipeline ranks, in its first step."""
    config = load(None, {"mesh": {"pp": 2}, "run": {"compute": compute}})
    (made,) = registry.fault_hooks([parse_fault(text, 2)])
    made.setup(RunContext(config, Grid({"pp": rank}), rank, torch.device("cpu")))
    made.step_begin(0)
    return made


def call(op):
    return CollectiveCall("pp", op, "x", torch.zeros(1), None, 1)


def timed(function, *arguments):
    begin = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - begin


class Clock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds):
        self.now += seconds

    def perf_counter(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    for module in (slow, launch_bound, hangs):
        monkeypatch.setattr(module, "time", made)
    return made


def segment(made, clock):
    made.segment_begin(SEGMENT)
    clock.sleep(made.slowed(0.01) if isinstance(made, slow.SlowCompute) else 0.01)
    made.segment_end(SEGMENT)
    clock.now -= 0.01  # what the segment took without the fault


@pytest.mark.parametrize(
    ("text", "strike", "late"),
    [
        ("slow_compute:rank=1,factor=3", segment, 0.02),
        ("long_stage:factor=3", segment, 0.02),
        ("long_stage:rank=1,factor=1.5", segment, 0.005),
        ("power_swing:rank=1,factor=3", segment, 0.02),
        ("power_swing:rank=1,factor=3,ramp_ms=4", segment, 0.008),
        ("pauses:rank=1,pause_ms=40,every=1", lambda made, _: made.segment_begin(SEGMENT), 0.04),
        ("late_data:rank=1,delay_ms=40", lambda made, _: made.data_begin(0), 0.04),
        ("slow_link:rank=1,delay_ms=40", lambda made, _: made.collective_begin(call("send")), 0.04),
        ("slow_link:rank=1,delay_ms=40", lambda made, _: made.collective_begin(call("recv")), 0.0),
        ("slow_link:rank=1,delay_ms=40", lambda made, _: made.wait_end(call("recv")), 0.04),
        ("slow_link:rank=1,delay_ms=40", segment, 0.0),
    ],
)
def test_only_the_rank_meant_is_late(clock, text, strike, late):
    strike(hook(text, 1), clock)
    assert clock.now == pytest.approx(late)
    strike(hook(text, 0), clock)
    assert clock.now == pytest.approx(late)


@pytest.mark.parametrize(
    ("text", "late"),
    [
        ("clock_swing:size=0.5,period_s=4", [0, 0.0025, 0.005, 0.0025, 0]),
        ("throttle:rank=0,factor=1.5,rise_s=2", [0, 0.0025, 0.005, 0.005, 0.005]),
        ("power_swing:factor=1.5", [0.005] * 5),
    ],
)
def test_pace_changes_with_time(clock, text, late):
    """On the rank that is named, and on both where none is."""
    for rank in [0] if "rank" in text else [0, 1]:
        made, found = hook(text, rank), []
        for step in range(5):
            begin = clock.now
            made.step_begin(step)
            segment(made, clock)
            found.append(clock.now - begin)
            clock.now = begin + 1
        assert found == pytest.approx(late)


def test_a_ramp_ends_within_the_step(clock):
    made = hook("power_swing:factor=2,ramp_ms=15", 0)
    for _ in range(3):
        segment(made, clock)
    assert clock.now == pytest.approx(0.015)
    made.step_begin(1)
    segment(made, clock)
    assert clock.now == pytest.approx(0.025)


def test_pauses_come_every_so_many_segments(clock):
    made = hook("pauses:rank=1,pause_ms=10,every=3", 1)
    for _ in range(8):
        made.segment_begin(SEGMENT)
    assert clock.now == pytest.approx(0.02)


def test_a_fault_rests_outside_its_steps(clock):
    made = hook("late_data:rank=1,delay_ms=40,steps=1:2", 1)
    made.data_begin(0)
    assert clock.now == 0
    made.step_begin(1)
    made.data_begin(1)
    assert clock.now == pytest.approx(0.04)


def test_real_slow_compute_computes_longer():
    """Own CPU time, so that a busy machine does not matter."""
    made = hook("slow_compute:rank=1,factor=3", 1, "real")
    a = torch.rand(256, 256)

    def work():
        made.segment_begin(SEGMENT)
        begin = time.thread_time()
        for _ in range(20):
            torch.mm(a, a)
        own = time.thread_time() - begin
        made.segment_end(SEGMENT)
        return own, time.thread_time() - begin

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        own, all_of_it = zip(*(work() for _ in range(5)), strict=True)
    finally:
        torch.set_num_threads(threads)
    assert sum(all_of_it) > 2 * sum(own)


def test_launch_bound_delays_operators_and_ends_with_the_step():
    made = hook("launch_bound:rank=1,delay_us=2000", 1)
    x = torch.zeros(1)
    assert timed(lambda: [x + 1 for _ in range(10)]) > 0.019
    made.close()
    assert min(timed(lambda: [x + 1 for _ in range(10)]) for _ in range(50)) < 0.015


def test_launch_bound_backward_pays_for_forward_without_communication(clock):
    x, back, reduce = torch.zeros(1), Segment("ffn", 0, "backward", 1), call("all_reduce")
    made = hook("launch_bound:rank=1,delay_us=1000", 1)
    made._mode.wait = lambda calls: clock.sleep(1e-3 * calls)
    try:
        made.segment_begin(SEGMENT)
        y = x + 1
        assert y.numel() == 1  # no operator
        torch.stack([x, y]).view(-1)
        made.segment_end(SEGMENT)
        forward = clock.now
        made.segment_begin(back)
        backward = clock.now - forward
        made.collective_begin(reduce)
        x.clone()
        during = clock.now - forward - backward
        made.collective_end(reduce)
        x.clone()
    finally:
        made.close()
    assert forward == pytest.approx(0.003)
    assert backward == pytest.approx(0.003)
    assert during == 0
    assert clock.now == pytest.approx(2 * forward + 0.001)


def test_stalls_and_crashes(monkeypatch, clock):
    done = []
    monkeypatch.setattr(clock, "sleep", lambda seconds: done.append(("sleep", seconds)))
    monkeypatch.setattr(hangs.os, "kill", lambda pid, sign: done.append((pid, sign)))
    monkeypatch.setattr(hangs, "FOREVER_S", 0)
    hook("host_stall:rank=1", 1).collective_begin(call("all_reduce"))
    hook("hold_gil:rank=1", 1).collective_begin(call("all_reduce"))  # the C library's sleep
    assert done == [("sleep", 0)]
    hook("crash:rank=1", 1).collective_begin(call("all_reduce"))
    assert done.pop() == (os.getpid(), signal.SIGKILL)
    hook("deadlock:rank=1", 1).collective_begin(call("all_reduce"))
    hook("stop:rank=1", 1).collective_begin(call("all_reduce"))
    assert done[1] == (os.getpid(), signal.SIGSTOP)
    with pytest.raises(RuntimeError, match="memory"):
        hook("out_of_memory:rank=1", 1).collective_begin(call("all_reduce"))
    hook("crash:rank=1", 0).collective_begin(call("all_reduce"))
    hook("host_stall:rank=1,steps=1", 1).collective_begin(call("all_reduce"))
    hook("host_stall:rank=1,axis=tp", 1).collective_begin(call("all_reduce"))
    hook("host_stall:rank=1,op=send", 1).collective_begin(call("all_reduce"))
    assert len(done) == 2
    both = hook("host_stall:rank=1,axis=pp,op=send", 1)
    for _ in range(2):
        both.collective_begin(call("send"))
    assert done[2:] == [("sleep", 0)], "once"


@pytest.mark.slow
def test_a_slow_rank_holds_up_the_whole_step(ranks):
    """Emulated, so that ranks overlap: the shortest step takes about `factor` times as long."""
    seconds = {}
    for faults in ([], ["slow_compute:rank=1,factor=4"]):
        config = load(
            None,
            {
                "mesh": {"tp": 2},
                "model": {"layers": 2},
                "data": {"batch_size": 2},
                "run": {"compute": "emulated", "emulated_gflops": 0.25, "steps": 3},
                "evidence": {"faults": faults},
            },
        )
        seconds[len(faults)] = min(ranks.run(timed_steps, 2, config)[0])
    assert seconds[1] > 1.5 * seconds[0]


def timed_steps(rank, world, store, config):
    planted = registry.fault_hooks(registry.read_faults(config))
    listed = HookList([*planted, *registry.emulated_compute(config, planted)])
    with workers.trainer(rank, world, store, config, listed) as made:
        out = []
        for step in range(config.steps):
            listed.step_begin(step)
            out.append(timed(lambda step=step: made.apply_gradients(step, made.compute_gradients(step).norm)))
        return out


def test_a_resized_message_keeps_its_rank(monkeypatch):
    """Rows of an all-to-all are integers as well; rank and tag of a message are none of them."""
    made = []

    def send(group, tensors, rank, tag):
        made.append((tensors[0].numel(), rank, tag))

    monkeypatch.setattr(torch.distributed.ProcessGroup, "send", send)
    next_call.resize_next("send")
    torch.distributed.ProcessGroup.send(object(), [torch.zeros(4, 2)], 1, 7)
    assert made == [(24, 1, 7)]
