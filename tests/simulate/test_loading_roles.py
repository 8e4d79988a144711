"""Ranks that all load data for others are the job's design; a rank that loads for longer is slow by the difference."""

import gzip
import json

import pytest

import tracekit
from tests.simulate.case import setup_of, written

TABLES = {"model": {"layers": 4, "vocab_size": 32000}}


def simulated(folder, mesh, late, steps=4):
    """(the finding, what a step takes longer by the faults, ms): `late` is what each rank loads, ms a step."""
    texts = [f"late_data:rank={rank},delay_ms={delay}" for rank, delay in late.items()]
    setup, config = setup_of(mesh, *texts, steps=steps, tables=TABLES, merge=False)
    outcome = written(folder, setup, config, detail="kernels")
    found = tracekit.slowrank(tracekit.load([str(folder / "trace")]))
    return found, outcome.summary.mean_step_ms - outcome.healthy.mean_step_ms


def without_loaders(trace):
    """Take the spans of the data loader out of the trace of any rank but the first."""
    packed = trace.suffix == ".gz"
    text = gzip.decompress(trace.read_bytes()) if packed else trace.read_bytes()
    document = json.loads(text)
    if document.get("distributedInfo", {}).get("rank") in {None, 0}:
        return
    events = document["traceEvents"]
    document["traceEvents"] = [e for e in events if "DataLoader" not in e.get("name", "")]
    data = json.dumps(document).encode()
    trace.write_bytes(gzip.compress(data) if packed else data)


@pytest.mark.quick(2)
@pytest.mark.parametrize("delay", [100, 200])
@pytest.mark.parametrize(
    ("mesh", "ranks"),
    [({"tp": 2, "dp": 3}, (0, 2, 4)), ({"tp": 2, "dp": 2}, (0, 2)), ({"pp": 4, "dp": 2}, (0, 4))],
)
def test_all_ranks_that_load_are_the_design(tmp_path, mesh, ranks, delay):
    found, lost = simulated(tmp_path, mesh, dict.fromkeys(ranks, delay))
    assert (found.verdict, found.cause, found.suspects) == ("imbalance", "dataloader", ())
    assert "load data for" in found.reason
    assert found.what_if.step_ms - found.what_if.without_suspects_ms == pytest.approx(lost, rel=0.1)


@pytest.mark.parametrize("delay", [100, 200])
@pytest.mark.quick(1)
def test_a_lone_first_stage_is_named_beside_its_design(tmp_path, delay):
    """No other rank loads data at all: in most jobs only the first stage does."""
    _, lost = simulated(tmp_path, {"pp": 4}, {0: delay})
    for trace in sorted((tmp_path / "trace").rglob("*.json*")):
        without_loaders(trace)
    found = tracekit.slowrank(tracekit.load([str(tmp_path / "trace")]))
    assert (found.verdict, found.cause, [s.rank for s in found.suspects]) == ("imbalance", "dataloader", [0])
    assert found.suspects[0].lost_ms_low <= lost <= found.suspects[0].lost_ms_high


@pytest.mark.slow
def test_a_missing_trace_blames_no_loader(tmp_path):
    """With a trace of another rank missing, the ranks of the role are the most of their stage."""
    simulated(tmp_path, {"tp": 2, "dp": 4}, dict.fromkeys((0, 2, 4, 6), 200))
    traces = sorted((tmp_path / "trace").rglob("*.json*"))
    assert len(traces) == 8
    found = tracekit.slowrank(tracekit.load([str(trace) for trace in traces[:-1]]))
    assert (found.verdict, found.suspects) == ("imbalance", ())


@pytest.mark.slow
def test_a_later_loader_costs_the_difference(tmp_path):
    both, _ = simulated(tmp_path / "both", {"tp": 2, "dp": 2}, {0: 60, 2: 60})
    found, _ = simulated(tmp_path / "later", {"tp": 2, "dp": 2}, {0: 60, 2: 160})
    assert not both.suspects
    assert (found.verdict, found.cause, [s.rank for s in found.suspects]) == ("slow_rank", "dataloader", [2])
    longer = found.what_if.step_ms - both.what_if.step_ms
    assert found.suspects[0].lost_ms_per_step == pytest.approx(longer, rel=0.1)


@pytest.mark.quick(1)
@pytest.mark.parametrize(("mesh", "rank"), [({"tp": 2, "dp": 2}, 2), ({"pp": 4, "dp": 2}, 0), ({"pp": 4}, 2)])
def test_one_late_loader_is_a_fault(tmp_path, mesh, rank):
    found, _ = simulated(tmp_path, mesh, {rank: 200})
    assert (found.verdict, found.cause, [s.rank for s in found.suspects]) == (
        "slow_rank",
        "dataloader",
        [rank],
    )
