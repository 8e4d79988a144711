"""Why a suspect works longer: compute, pauses, launches, loading, allocation; else unknown."""

from dataclasses import replace

import numpy as np
import pytest

from tracekit.analysis.slowrank.hypotheses.suspect_work import explain
from tracekit.steps.features import Features

MS = 1_000_000.0
STEPS = 4


def gaps(*lengths):
    """Lengths of single gaps, ms, longest first."""
    return np.sort(np.array([n * MS for n in lengths]))[::-1].astype(np.int64)


PEER = Features(
    rank=0, on_gpu=True, own=100 * MS, busy=90 * MS, gap=10 * MS, typical=90 * MS, gaps=gaps(*[0.1] * 400),
    attention=30 * MS, matmul=50 * MS, copies=0.0, loader=0.0, collector=0.0, allocator=0.0, launches=400.0,
    busy_by_step=(90 * MS,) * STEPS, attention_by_step=(30 * MS,) * STEPS,
)  # fmt: skip
PEERS = [replace(PEER, rank=r) for r in range(3)]


def cause_of(**changes):
    return explain(replace(PEER, rank=9, **changes), PEERS)


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


def test_on_a_cpu_trace_the_evidence_says_cpu():
    peers = [replace(p, on_gpu=False) for p in PEERS]
    cause, evidence = explain(
        replace(PEER, on_gpu=False, own=120 * MS, busy=110 * MS, typical=110 * MS), peers
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


def test_few_long_gaps_are_pauses_of_the_process():
    cause, _ = cause_of(own=120 * MS, gap=30 * MS, gaps=gaps(*[20] * STEPS, *[0.1] * 400))
    assert cause == "host_stall"


def test_communication_alone_tells_no_cause():
    """Without compute in the trace, what lies between two operations may be anything."""
    peers = [replace(p, busy=0.0, gap=100 * MS) for p in PEERS]
    for shape in (gaps(*[20] * STEPS, *[0.1] * 400), gaps(*[0.3] * 400)):
        cause, _ = explain(replace(PEER, own=120 * MS, busy=0.0, gap=120 * MS, gaps=shape), peers)
        assert cause == "unknown"


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
    cause, (row,) = explain(PEER, [])
    assert (cause, row.peers_median) == ("unknown", None)


def test_an_excess_in_neither_compute_nor_gaps_is_unknown():
    assert cause_of(own=120 * MS, busy=93 * MS, gap=13 * MS)[0] == "unknown"
