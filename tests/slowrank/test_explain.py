"""Why a suspect works longer: compute, pauses, launches, loading, allocation; else unknown."""

from dataclasses import replace

import numpy as np
import pytest

from tracekit.analysis.slowrank.hypotheses.excess_parts import explain
from tracekit.steps.features import Features, Operators

MS = 1_000_000.0
STEPS = 4


def gaps(*lengths):
    """Lengths of single gaps, ms, longest first."""
    return np.sort(np.array([n * MS for n in lengths]))[::-1].astype(np.int64)


PEER = Features(
    rank=0, on_gpu=True, own=100 * MS, busy=90 * MS, gap=10 * MS, gaps=gaps(*[0.1] * 400),
    attention=30 * MS, matmul=50 * MS, copies=0.0, loader=0.0, collector=0.0, allocator=0.0, launches=400.0,
    busy_by_step=(90 * MS,) * STEPS, attention_by_step=(30 * MS,) * STEPS,
    operators={"aten::mm": Operators(90, 90 * MS, 1 * MS, 90 * MS, 0)},
)  # fmt: skip
PEERS = [replace(PEER, rank=r) for r in range(3)]


def longer(factor):
    """Operators that all take `factor` times as long as the peers'."""
    return {"aten::mm": Operators(90, factor * 90 * MS, factor * MS, factor * 90 * MS, 0)}


def cause_of(**changes):
    return explain(replace(PEER, rank=9, **changes), PEERS)[:2]


def shares_of(**changes):
    """The causes that explain some of the excess with their shares, and the one that is named."""
    found = explain(replace(PEER, rank=9, **changes), PEERS)
    return {c.name: round(c.share, 2) for c in found.causes}, found.named


def test_longer_kernels_are_compute():
    cause, evidence = cause_of(own=120 * MS, busy=110 * MS, matmul=65 * MS)
    assert cause == "gpu_compute"
    shown = {e.what: (e.value, e.peers_median, e.unit) for e in evidence}
    assert shown["GPU compute a step"] == (110.0, 90.0, "ms")
    assert shown["matrix products on the GPU a step"] == (65.0, 50.0, "ms")


def test_longer_copies_are_the_host_link():
    cause, evidence = cause_of(own=120 * MS, busy=110 * MS, copies=20 * MS)
    assert cause == "host_copies"
    assert "copies between device and host a step" in {e.what for e in evidence}


def test_longer_copies_between_devices_are_the_network():
    cause, evidence = cause_of(own=120 * MS, busy=110 * MS, peer_copies=20 * MS)
    assert cause == "network"
    assert "copies between devices a step" in {e.what for e in evidence}


@pytest.mark.parametrize(("length", "cause"), [(15.0, "host_stall"), (0.6, "cpu_launch")])
def test_many_pauses_are_pauses(length, cause):
    """A collector that runs twenty times a step is no slow launch; a gap of less than a time slice may be one."""
    often = round(STEPS * 300 / length)
    more = cause_of(own=400 * MS, gap=310 * MS, gaps=gaps(*[length] * often, *[0.1] * 400))
    assert more[0] == cause


def test_late_launches_are_no_pauses_where_some_are_merged():
    """Every launch is late: gaps beyond a time slice hold several, and the rest of the excess lies in short ones."""
    more = cause_of(own=400 * MS, gap=310 * MS, gaps=gaps(*[7.0] * 100, *[1.5] * 360))
    assert more[0] == "cpu_launch"


def test_on_a_cpu_trace_the_evidence_says_cpu():
    peers = [replace(p, on_gpu=False) for p in PEERS]
    cause, evidence, _ = explain(
        replace(PEER, on_gpu=False, own=120 * MS, busy=110 * MS, operators=longer(1.22)), peers
    )
    assert cause == "gpu_compute"
    assert any("CPU compute" in e.what for e in evidence)
    assert not any("GPU" in e.what for e in evidence)


def test_few_long_operators_on_a_cpu_are_pauses():
    """A process that was stopped within some operators has a median as short as its peers'."""
    peers = [replace(p, on_gpu=False) for p in PEERS]
    stopped = replace(PEER, on_gpu=False, own=120 * MS, busy=110 * MS)
    assert explain(stopped, peers)[0] == "host_stall"
    assert explain(replace(stopped, attention=50 * MS), peers)[0] == "gpu_compute"  # long documents
    assert (
        cause_of(own=120 * MS, busy=110 * MS)[0] == "gpu_compute"
    )  # a device computes while its host stands


def test_stops_between_and_within_operators_are_pauses():
    """Each is less than half of the excess."""
    peers = [replace(p, on_gpu=False) for p in PEERS]
    long = gaps(*[9.6] * STEPS, *[0.1] * 400)
    stopped = replace(PEER, on_gpu=False, own=120 * MS, busy=99.6 * MS, gap=19.6 * MS, gaps=long)
    assert explain(stopped, peers).named == "host_stall"
    slower = replace(stopped, operators=longer(1.11))
    assert explain(slower, peers).named == "unknown"


def test_few_long_gaps_are_pauses_of_the_process():
    cause, _ = cause_of(own=120 * MS, gap=30 * MS, gaps=gaps(*[20] * STEPS, *[0.1] * 400))
    assert cause == "host_stall"


def test_communication_alone_tells_no_cause():
    """Without compute in the trace, what lies between two operations may be anything."""
    peers = [replace(p, busy=0.0, gap=100 * MS) for p in PEERS]
    for shape in (gaps(*[20] * STEPS, *[0.1] * 400), gaps(*[0.3] * 400)):
        cause, _, shares = explain(replace(PEER, own=120 * MS, busy=0.0, gap=120 * MS, gaps=shape), peers)
        assert (cause, shares) == ("unknown", ())


def test_many_short_gaps_are_a_slow_host():
    cause, _ = cause_of(own=120 * MS, gap=30 * MS, gaps=gaps(*[0.3] * 400))
    assert cause == "cpu_launch"


@pytest.mark.parametrize(
    ("name", "cause"), [("loader", "dataloader"), ("collector", "host_stall"), ("allocator", "memory")]
)
def test_named_spans_explain_gaps_before_their_shape_does(name, cause):
    found, evidence = cause_of(own=120 * MS, gap=30 * MS, gaps=gaps(*[0.3] * 400), **{name: 18 * MS})
    assert found == cause
    assert evidence[-1].value == 18.0


def test_loading_behind_compute_explains_nothing():
    cause, _ = cause_of(own=120 * MS, busy=110 * MS, loader=50 * MS)
    assert cause == "gpu_compute"


def test_no_excess_or_nobody_to_compare_with_is_unknown():
    assert cause_of()[0] == "unknown"
    assert cause_of(own=90 * MS)[0] == "unknown"
    cause, (row,), _ = explain(PEER, [])
    assert (cause, row.peers_median) == ("unknown", None)


def test_an_excess_in_neither_compute_nor_gaps_is_unknown():
    assert cause_of(own=120 * MS, busy=93 * MS, gap=13 * MS)[0] == "unknown"


PAUSES, LONGER_GAPS = gaps(*[20] * STEPS, *[0.1] * 400), gaps(*[12] * STEPS, *[0.2] * 400)


@pytest.mark.parametrize(
    ("changes", "shares", "named"),
    [
        ({"busy": 108 * MS, "gap": 12 * MS}, {"gpu_compute": 0.9, "cpu_launch": 0.1}, "gpu_compute"),
        ({"busy": 104 * MS, "gap": 16 * MS}, {"gpu_compute": 0.7, "cpu_launch": 0.3}, "unknown"),
        ({"busy": 110 * MS, "copies": 11 * MS}, {"host_copies": 0.55, "gpu_compute": 0.45}, "unknown"),
        ({"gap": 30 * MS, "loader": 12 * MS, "gaps": LONGER_GAPS}, {"dataloader": 0.6, "host_stall": 0.4}, "unknown"),
        ({"gap": 30 * MS, "collector": 9 * MS, "gaps": PAUSES}, {"host_stall": 1.0}, "host_stall"),
    ],
    ids=["mostly compute", "compute and launches", "copies", "loader and pauses", "two signs of one cause"],
)  # fmt: skip
def test_a_cause_is_named_where_it_explains_most(changes, shares, named):
    found, name = shares_of(own=120 * MS, **changes)
    assert (found, name) == (pytest.approx(shares, abs=0.02), named)


def test_the_pace_of_operators_counts_by_their_time():
    """Of many short and a few long operators of a name, a longer median shows that all are longer and none stopped."""
    peer = replace(
        PEER,
        on_gpu=False,
        operators={"aten::mm": Operators(1000, 360 * MS, 0.01 * MS, 5 * MS, 0)},
        steps=STEPS,
    )
    slow = {"aten::mm": Operators(1000, 440 * MS, 0.0122 * MS, 6 * MS, 0)}
    found = explain(replace(peer, rank=9, own=120 * MS, busy=110 * MS, operators=slow), [peer, peer, peer])
    assert found.named == "gpu_compute"
    beside = {**slow, "aten::linear": Operators(40, 80 * MS, 2 * MS, 80 * MS, 0)}
    more = {**peer.operators, "aten::linear": beside["aten::linear"]}
    found = explain(replace(peer, rank=9, own=120 * MS, busy=110 * MS, operators=more), [peer, peer, peer])
    assert found.named == "gpu_compute"  # work that its peers lack is no stop
