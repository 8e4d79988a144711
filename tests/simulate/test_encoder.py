"""An image encoder in simulated jobs: its place in the step, and whether slowrank tells it from a slow rank."""

import dataclasses

import pytest

from reftrain.config.encoder import PLACEMENTS
from reftrain.config.fault_spec import parse_fault
from reftrain.config.file import load as load_config
from reftrain.cost.hardware import load_hardware
from reftrain.cost.job import cost_model_of, job_of_run
from reftrain.cost.memory import MemoryModel
from reftrain.plan.projection import project
from reftrain.schedule.actions import COMPUTE, Kind
from reftrain.simulate.runner import simulate
from reftrain.simulate.setup import Setup
from reftrain.simulate.summary import summarise
from tests.marks import quick_first
from tests.simulate.case import written
from tracekit.analysis.hang.analyse import analyse as find_hang
from tracekit.analysis.slowrank.analyse import analyse as find_slow
from tracekit.dumps.load import load_dumps
from tracekit.ingest import load

MESH = {"pp": 4, "dp": 2}
MODEL = {"layers": 20, "cross_every": 4}
ENCODER = {"layers": 24, "dim": 1024, "heads": 16, "ffn_dim": 4096, "tokens": 1024, "patch": 588}
SMALL = {**ENCODER, "layers": 1}


def multimodal(*faults, placement="before", encoder=ENCODER, schedule="flexible"):
    """Setup and configuration of a job with stages of two groups of layers each."""
    tables = {
        "model": {"preset": "8b", "vocab_size": 1024, **MODEL},
        "encoder": {**encoder, "placement": placement},
        "mesh": MESH,
        "pipeline": {"schedule": schedule},
        "data": {"seq_len": 512, "batch_size": 16},
        "evidence": {"faults": list(faults)},
    }
    config = load_config(None, tables)
    job = dataclasses.replace(job_of_run(config), kernels="fused", attention="flex")
    specs = tuple(parse_fault(text, 8) for text in faults)
    setup = Setup(job, job.lowered, load_hardware("h100"), 3, seed=5, faults=specs, merge=True)
    return setup, config


FOUND = [
    ("before", ENCODER, (), "imbalance", "stage_imbalance", (0, 4)),
    ("before", SMALL, (), "healthy", None, ()),
    ("replicated", ENCODER, (), "healthy", None, ()),
    ("inside", ENCODER, (), "imbalance", "stage_imbalance", (0, 4)),
    ("inside", SMALL, (), "healthy", None, ()),
    ("inside", ENCODER, ("slow_compute:rank=4,factor=1.6",), "slow_rank", "gpu_compute", (4,)),
    ("inside", SMALL, ("slow_compute:rank=3,factor=1.3",), "slow_rank", "gpu_compute", (3,)),
    ("before", ENCODER, ("slow_compute:rank=4,factor=1.6",), "slow_rank", "gpu_compute", (4,)),
    ("replicated", ENCODER, ("slow_compute:rank=3,factor=1.3",), "slow_rank", "gpu_compute", (3,)),
]


@pytest.mark.parametrize(
    ("placement", "encoder", "faults", "verdict", "cause", "ranks"), quick_first(1, FOUND)
)
def test_slowrank_tells_an_encoder_from_a_slow_rank(
    tmp_path, placement, encoder, faults, verdict, cause, ranks
):
    setup, config = multimodal(*faults, placement=placement, encoder=encoder)
    written(tmp_path, setup, config)
    finding = find_slow(load([str(tmp_path / "trace")]))
    assert (finding.verdict, finding.cause) == (verdict, cause)
    assert {suspect.rank for suspect in finding.suspects} == set(ranks)
    assert {axis: size for axis, size in finding.mesh.sizes.items() if size > 1} == MESH


HANGS = [
    ("host_stall:rank=4,steps=1", "hang", "host_stalled"),
    ("skip_collective:rank=3,steps=1,axis=pp,op=recv", "hang", "host_stalled"),
    ("wrong_size:rank=1,steps=1,axis=pp,op=send", "mismatch", "mismatched_call"),
    ("crash:rank=5,steps=1", "hang", "missing_dump"),
]


@pytest.mark.parametrize(("fault", "verdict", "kind"), quick_first(2, HANGS))
def test_hang_names_the_rank_of_an_encoder_inside(tmp_path, fault, verdict, kind):
    """Two messages a hop: the one that is left out is that of the tokens, before a gradient goes the other way."""
    setup, config = multimodal(fault, placement="inside", encoder={**SMALL, "tokens": 768})
    written(tmp_path, setup, config)
    finding = find_hang(load_dumps((str(tmp_path / "fr"),), jobs=1))
    assert (finding.verdict, [c.rank for c in finding.culprits]) == (verdict, [setup.faults[0].rank])
    assert finding.culprits[0].kind == kind


def test_messages_behind_one_that_hangs_are_not_compared(tmp_path):
    """Rank 3 waits in a send; the receive behind it, of another size than what rank 2 sends, has not begun."""
    fault = "skip_collective:rank=3,steps=1,axis=pp,op=recv"
    written(tmp_path, *multimodal(fault, placement="inside", encoder={**SMALL, "tokens": 768}))
    one_pipeline = tuple(str(tmp_path / "fr" / f"rank_{rank}") for rank in range(4))
    finding = find_hang(load_dumps(one_pipeline, jobs=1))
    assert (finding.verdict, finding.candidates) == ("inconclusive", (2, 3))
    assert "size" not in finding.reason


@pytest.mark.parametrize("schedule", ["flexible", "chimera"])
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_projection_and_simulation_agree_on_the_encoder(placement, schedule):
    """Both read the same table; the simulation has the host and the clip beside it."""
    setup, _ = multimodal(placement=placement, schedule=schedule)
    quiet = dataclasses.replace(setup, jitter=0.0)
    projected = project(setup.job, setup.hardware).step_s
    assert summarise(simulate(quiet)).mean_step_ms / 1e3 == pytest.approx(projected, rel=0.15)


def test_a_replicated_encoder_encodes_a_share():
    before, every = (multimodal(placement=placement)[0].job for placement in ("before", "replicated"))
    counts = [
        [sum(a.kind is Kind.ENCODE for a in acts) for acts in job.lowered.actions] for job in (before, every)
    ]
    assert counts == [[8, 0, 0, 0], [2, 2, 2, 2]]
    first, second = (MemoryModel(job).rank(0).largest for job in (before, every))
    assert first.activations > second.activations
    assert MemoryModel(before).rank(1).largest.optimizer < first.optimizer


def test_an_encoder_inside_holds_the_images_in_flight():
    """Encoding with each micro-batch keeps no more of them than the first stage does; tokens go with messages."""
    inside, before = (multimodal(placement=placement)[0].job for placement in ("inside", "before"))
    first = [str(a) for a in inside.lowered.actions[0] if a.kind in COMPUTE]
    assert first[:2] == ["E-1.0", "F0.0"]
    assert first[-2:] == ["B0.7", "EB-1.7"]
    assert MemoryModel(inside).rank(0).largest.activations < MemoryModel(before).rank(0).largest.activations
    carried = cost_model_of(inside, load_hardware("h100"))
    tokens = inside.image_tokens * inside.model.dim
    assert [carried.token_bytes(gradient=back) for back in (False, True)] == [2 * tokens, 4 * tokens]
    assert cost_model_of(before, load_hardware("h100")).token_bytes(gradient=True) == 0
