"""Pipelines with one rank a stage: no rank has a peer, and its fault is known by what all stages run."""

import pytest

import tracekit
from reftrain.simulate.runner import simulate
from reftrain.simulate.summary import summarise
from tests.marks import quick_first
from tests.simulate.case import setup_of, written

COMPUTES = "slow_compute:rank=2,factor=1.5"
HEADED = {"model": {"layers": 8, "vocab_size": 32000}}
FAULTS = {
    "pauses:rank=2,pause_ms=50,every=8": "host_stall",
    COMPUTES: "gpu_compute",
    "slow_compute:rank=2,factor=1.8,steps=1:4:2": "gpu_compute",
    "throttle:rank=2,factor=1.6,rise_s=2": "gpu_compute",
    "pauses:rank=2,pause_ms=200,every=1": "host_stall",
    "late_data:rank=2,delay_ms=300": "dataloader",
    "allocator_retries:rank=2,retry_ms=60": "memory",
}


PIPELINES = [*((text, 4) for text in FAULTS), *((next(iter(FAULTS)), stages) for stages in (3, 8))]


@pytest.mark.slow
@pytest.mark.parametrize(("text", "stages"), quick_first(1, PIPELINES))
def test_a_fault_is_named_beside_a_longer_stage(tmp_path, text, stages):
    """The head and the loss make the last stage longer by design."""
    tables = {"model": {"layers": 2 * stages, "vocab_size": 32000}}
    faulty, config = setup_of({"pp": stages}, text, steps=5, micro_batches=8, tables=tables, merge=False)
    calm, _ = setup_of({"pp": stages}, steps=5, micro_batches=8, tables=tables, merge=False)
    gain = summarise(simulate(faulty)).mean_step_ms - summarise(simulate(calm)).mean_step_ms
    written(tmp_path, faulty, config, detail="kernels")
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    assert (found.verdict, found.cause, [s.rank for s in found.suspects]) == ("slow_rank", FAULTS[text], [2])
    suspect = found.suspects[0]
    assert suspect.lost_ms_low * 0.99 <= gain <= suspect.lost_ms_high * 1.01
    if found.cause == "gpu_compute":
        assert suspect.lost_ms_high < 1.5 * gain


@pytest.mark.quick(2)
@pytest.mark.parametrize(
    "text", ["allocator_retries:rank=2,retry_ms=60", "late_data:rank=2,delay_ms=300", COMPUTES]
)
@pytest.mark.parametrize("missing", [0, 3])
def test_other_stages_without_traces_hide_no_fault(tmp_path, text, missing):
    """What rank 2 does itself, its trace shows; what it would wait for instead, only the missing trace could show."""
    setup, config = setup_of({"pp": 4}, text, steps=4, tables=HEADED, merge=False)
    ranks = [rank for rank in range(4) if rank != missing]
    outcome = written(tmp_path, setup, config, detail="kernels", ranks=ranks)
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    assert found.verdict in {"slow_rank", "inconclusive"}
    assert found.suspects or "dataloader" not in FAULTS[text]  # the loader of a longer stage is proven
    first = (found.suspects or found.candidates)[0]
    assert (first.rank, first.cause) == (2, FAULTS[text])
    gain = outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms
    assert first.lost_ms_low <= gain <= first.lost_ms_high


@pytest.mark.parametrize(
    ("rank", "fault", "cause"),
    [
        (1, "pauses:rank=1,pause_ms=80,every=4", "host_stall"),
        (2, "allocator_retries:rank=2,retry_ms=60", "memory"),
    ],
)
def test_a_replica_without_traces_hides_no_host(tmp_path, rank, fault, cause):
    """The pipeline of the late host was recorded whole: all messages that it exchanges have both ends."""
    setup, config = setup_of({"pp": 4, "dp": 2}, fault, steps=4, tables=HEADED, merge=False)
    outcome = written(tmp_path, setup, config, detail="kernels", ranks=[0, 1, 2, 3])
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    named = [(s.rank, s.cause) for s in found.suspects]
    assert (found.verdict, named) == ("slow_rank", [(rank, cause)])
    gain = outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms
    assert found.suspects[0].lost_ms_low <= gain <= found.suspects[0].lost_ms_high


PEERLESS = [
    ("pauses:rank=1,pause_ms=80,every=4", "host_stall"),
    ("allocator_retries:rank=1,retry_ms=60", "memory"),
    ("slow_compute:rank=1,factor=1.5", "gpu_compute"),
]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("text", "cause"), PEERLESS)
def test_a_peer_without_trace_hides_no_fault(tmp_path, text, cause):
    """Rank 3, the only peer of rank 1, left no trace; ranks 0 and 2 of the other stage show what is usual."""
    tables = {"model": {"layers": 4, "vocab_size": 32000}}
    setup, config = setup_of({"pp": 2, "dp": 2}, text, steps=4, tables=tables, merge=False)
    outcome = written(tmp_path, setup, config, detail="kernels", ranks=[0, 1, 2])
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    first = (found.suspects or found.candidates)[0]
    assert (first.rank, first.cause) == (1, cause)
    gain = outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms
    assert first.lost_ms_low <= gain <= first.lost_ms_high


@pytest.mark.parametrize(("stages", "ranks"), [(2, [0, 1]), (4, [1, 2])])
def test_the_slower_of_two_devices_is_a_candidate(tmp_path, stages, ranks):
    """Nothing shows which of two devices is usual, but a longer stage makes no kernel longer."""
    tables = {"model": {"layers": 2 * stages, "vocab_size": 32000}}
    text = "slow_compute:rank=1,factor=1.5"
    setup, config = setup_of({"pp": stages}, text, steps=4, tables=tables, merge=False)
    outcome = written(tmp_path, setup, config, detail="kernels", ranks=ranks)
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    assert found.verdict == "inconclusive"
    assert (found.candidates[0].rank, found.candidates[0].cause) == (1, "gpu_compute")
    gain = outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms
    assert found.candidates[0].lost_ms_low <= gain <= found.candidates[0].lost_ms_high


ONE_STEP = [("allocator_retries:rank=2,retry_ms=60", 1), ("pauses:rank=2,pause_ms=80,every=4,steps=1", 3)]


@pytest.mark.quick(1)
@pytest.mark.parametrize(("text", "steps"), ONE_STEP)
def test_one_late_step_of_few_is_open(tmp_path, text, steps):
    """The head makes stage 3 longer, and other hosts launch no faster; neither explains 40 % of a step."""
    setup, config = setup_of({"pp": 4}, text, steps=steps, tables=HEADED, merge=False)
    outcome = written(tmp_path, setup, config, detail="kernels")
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    assert (found.verdict, [c.rank for c in found.candidates]) == ("inconclusive", [2])
    gain = outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms
    assert gain <= found.candidates[0].lost_ms_high
