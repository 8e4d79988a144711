"""What is planted into a simulated job is found by the analyses, which read nothing but its files."""

from dataclasses import replace

import pytest

from reftrain.simulate.runner import simulate
from reftrain.simulate.summary import summarise
from tests.marks import quick_but, quick_first
from tests.simulate.case import setup_of, written
from tracekit.analysis.hang.analyse import analyse as find_hang
from tracekit.analysis.slowrank.analyse import analyse as find_slow
from tracekit.dumps.load import load_dumps
from tracekit.ingest import load

PIPELINE = {"tp": 2, "pp": 2, "dp": 4}
FLAT = {"tp": 2, "cp": 2, "dp": 4}
CASES = [
    (PIPELINE, (), "healthy", None, ()),
    (PIPELINE, ("slow_compute:rank=5,factor=1.3",), "slow_rank", "gpu_compute", (5,)),
    (PIPELINE, ("slow_compute:rank=11,factor=1.6,steps=1:3",), "slow_rank", "gpu_compute", (11,)),
    (PIPELINE, ("launch_bound:rank=6,delay_us=1500",), "slow_rank", "cpu_launch", (6,)),
    (FLAT, ("pauses:rank=9,pause_ms=120,every=100",), "slow_rank", "host_stall", (9,)),
    (PIPELINE, ("late_data:rank=14,delay_ms=150",), "slow_rank", "dataloader", (14,)),
    (PIPELINE, ("slow_link:rank=6,delay_ms=1",), "slow_link", "network", (6,)),
    (FLAT, ("doc_imbalance:factor=4",), "imbalance", "data_imbalance", ()),
    (PIPELINE, ("doc_imbalance:factor=4",), "imbalance", "data_imbalance", ()),
    ({**PIPELINE, "cp": 2, "dp": 2}, ("doc_imbalance:factor=4,rank=5",), "imbalance", "data_imbalance", ()),
    (PIPELINE, ("long_stage:rank=4,factor=1.3",), "imbalance", "stage_imbalance", (0, 1, 4, 5, 8, 9, 12, 13)),
]


@pytest.mark.parametrize(
    ("mesh", "faults", "verdict", "cause", "ranks"),
    quick_but([*CASES[:6], *CASES[7:10]], CASES),
)
@pytest.mark.quick(1)
def test_slowrank_finds_what_is_planted(tmp_path, mesh, faults, verdict, cause, ranks):
    setup, config = setup_of(mesh, *faults, steps=4)
    outcome = written(tmp_path, setup, config)
    finding = find_slow(load([str(tmp_path / "trace")]))
    assert (finding.verdict, finding.cause) == (verdict, cause)
    assert {s.rank for s in finding.suspects} == set(ranks)
    assert dict(finding.mesh.sizes) == {"tp": 2, "cp": 1, "pp": 1, "dp": 4, **mesh}
    if faults:
        assert outcome.slowdown > 1.03
        assert finding.what_if.slowdown > 1.02
    if ranks and verdict != "imbalance":
        told = (finding.what_if.slowdown - 1) / (outcome.slowdown - 1)
        assert 0.6 <= told <= 1.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "hidden", [("slow_compute:rank=5,factor=1.3",), ()], ids=["a slow device", "nothing"]
)
def test_cures_show_what_a_slow_host_hides(tmp_path, hidden):
    host = "launch_bound:rank=11,delay_us=800"
    setup, config = setup_of(PIPELINE, host, *hidden, steps=4, merge=False, tables={"model": {"layers": 8}})
    written(tmp_path, setup, config, detail="kernels")
    finding = find_slow(load([str(tmp_path / "trace")]))
    assert (finding.cause, [s.rank for s in finding.suspects]) == ("cpu_launch", [11])
    expected = [("cpu_launch", (11,)), ("gpu_compute", (5,))] if hidden else []
    assert [(c.cause, c.ranks) for c in finding.cures] == expected
    if hidden:
        healthy = summarise(simulate(replace(setup, faults=()))).mean_step_ms
        assert finding.cures[-1].step_ms == pytest.approx(healthy, rel=0.05)


@pytest.mark.slow
def test_slowrank_finds_the_rank_among_every_kernel(tmp_path):
    setup, config = setup_of(
        PIPELINE, "slow_compute:rank=5,factor=1.3", merge=False, tables={"model": {"layers": 8}}
    )
    written(tmp_path, setup, config, detail="kernels")
    finding = find_slow(load([str(tmp_path / "trace")]))
    assert (finding.verdict, finding.cause, finding.suspects[0].rank) == ("slow_rank", "gpu_compute", 5)


REPLICAS = [({"tp": 2, "dp": 4}, 5), ({"tp": 2, "pp": 2, "dp": 3}, 7), ({"tp": 2, "cp": 2, "dp": 3}, 6)]


@pytest.mark.parametrize(("mesh", "rank"), quick_first(1, REPLICAS))
@pytest.mark.parametrize("zero", quick_but([0], [0, 2]))
@pytest.mark.slow
def test_replicas_do_not_hide_the_price(tmp_path, mesh, rank, zero):
    """Gradients' all-reduces queue behind a late rank, which must not bind the step without its lateness."""
    tables = {"model": {"layers": 16}, "data": {"seq_len": 4096}}
    fault = f"slow_compute:rank={rank},factor=1.3"
    setup, config = setup_of({**mesh, "zero": zero}, fault, merge=False, micro_batches=2, tables=tables)
    outcome = written(tmp_path, setup, config, detail="kernels")
    finding = find_slow(load([str(tmp_path / "trace")]))
    assert (finding.verdict, [s.rank for s in finding.suspects]) == ("slow_rank", [rank])
    assert finding.what_if.slowdown == pytest.approx(outcome.slowdown, abs=0.05)


HANGS = [
    ("host_stall:rank=9,steps=1", "hang", "host_stalled"),
    ("host_stall:rank=9,steps=1,axis=tp", "hang", "host_stalled"),
    ("host_stall:rank=6,steps=1,axis=pp", "hang", "host_stalled"),
    ("host_stall:rank=9,steps=0,axis=dp,op=reduce_scatter", "hang", "host_stalled"),
    ("hold_gil:rank=2,steps=1,axis=tp", "hang", "host_stalled"),
    ("crash:rank=9,steps=1,axis=dp", "hang", "missing_dump"),
    ("crash:rank=21,steps=1,axis=pp", "hang", "missing_dump"),
    ("wrong_size:rank=9,steps=1,axis=dp", "mismatch", "mismatched_call"),
    ("skip_collective:rank=9,steps=1,axis=dp", "hang", "host_stalled"),
]


@pytest.mark.parametrize(("fault", "verdict", "kind"), quick_but([*HANGS[1:4], HANGS[6]], HANGS))
@pytest.mark.quick(2)
def test_hang_names_the_rank_that_never_came(tmp_path, fault, verdict, kind):
    setup, config = setup_of({"tp": 4, "pp": 2, "dp": 4}, fault, steps=3)
    outcome = written(tmp_path, setup, config)
    rank = setup.faults[0].rank
    assert outcome.simulation.whole_steps == setup.faults[0].first
    finding = find_hang(load_dumps((str(tmp_path / "fr"),), jobs=1))
    assert (finding.verdict, [c.rank for c in finding.culprits]) == (verdict, [rank])
    assert finding.culprits[0].kind == kind
    assert len(finding.victims) == 31


def test_dumps_of_a_healthy_job_hold_no_outstanding_call(tmp_path):
    setup, config = setup_of({"tp": 2, "pp": 2, "dp": 2}, steps=1)
    written(tmp_path, setup, config, flight_recorder=True)
    finding = find_hang(load_dumps((str(tmp_path / "fr"),), jobs=1))
    assert (finding.verdict, finding.culprits) == ("none", ())
    assert sorted(p.name for p in (tmp_path / "fr").iterdir()) == [f"rank_{r}" for r in range(8)]
