"""An optimizer in the host's memory: the same bits, its copies announced and traced, its checkpoint interchangeable."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest

from reftrain.config.file import load
from reftrain.errors import ConfigError
from reftrain.faults.registry import read_faults
from reftrain.job.launcher import launch
from reftrain.rank.hooks import HookList, Hooks
from tests.numerics import matched, real_ranks
from tests.reftrain.workers import trainer

MODEL = {"layers": 2, "dim": 32, "ffn_dim": 32, "vocab_size": 260}
DATA = {"batch_size": 12, "seq_len": 48}
LAYOUTS = [
    ({"dp": 3}, "bf16", {}),
    ({"dp": 3, "zero": 3}, "bf16_pure", {}),
    ({"dp": 3, "zero": 0}, "fp32", {}),
    ({"tp": 2, "pp": 2, "dp": 3, "zero": 2}, "bf16", {}),
]


def configuration(mesh, policy="bf16", pipeline=None, *, offload=True, **run):
    clip = {"clip_norm": 0.0} if pipeline else {"clip_norm": 0.3}
    return load(
        None,
        {
            "model": MODEL,
            "data": DATA,
            "mesh": mesh,
            "pipeline": pipeline or {},
            "numerics": {"policy": policy},
            "optimizer": {"offload": offload, **clip},
            "run": {"steps": 3, **run},
        },
    )


class Copies(Hooks):
    """Keeps every announced copy."""

    def __init__(self):
        self.seen = []

    def copy_end(self, copy):
        self.seen.append(copy)


def copies(rank, world, store, config):
    hook = Copies()
    with trainer(rank, world, store, config, HookList([hook])) as made:
        got = made.compute_gradients(0)
        made.apply_gradients(0, got.norm)
        shards = sum(t.numel() for t in made.local_parameters().values())
    return [(c.way, c.nbytes) for c in hook.seen], shards


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "policy", "pipeline"), LAYOUTS)
def test_offloaded_steps_have_the_same_bits(ranks, mesh, policy, pipeline):
    on, off = (configuration(mesh, policy, pipeline, offload=flag) for flag in (True, False))
    mine, theirs = (ranks.run(real_ranks.trained, c.mesh.world_size, c, 3) for c in (on, off))
    for one, other in zip(mine, theirs, strict=True):
        assert (one.losses, one.norms) == (other.losses, other.norms)
        assert all(real_ranks.same(bits, other.parameters[n]) for n, bits in one.parameters.items())


@pytest.mark.slow
def test_replay_of_offloaded_runs_equals_every_bit(ranks):
    config = configuration({"tp": 2, "dp": 3, "zero": 2})
    real = ranks.run(real_ranks.trained, config.mesh.world_size, config, 3)
    found = matched.match(real, matched.replayed(config, 3))
    assert found.equal == found.compared, str(found)


def test_copies_are_announced_with_their_bytes(ranks):
    config = configuration({"dp": 3}, "bf16_pure")
    for seen, shards in ranks.run(copies, 3, config):
        assert seen == [("to_host", 2 * shards), ("to_device", 2 * shards)]


def losses(folder, rank=0):
    rows = (folder / "metrics" / f"rank{rank}.jsonl").read_text().splitlines()
    return [json.loads(row)["loss"] for row in rows]


@pytest.mark.slow
def test_checkpoints_fit_runs_with_and_without_offload(tmp_path):
    """A run that moves its optimizer to the host half-way, and back, never differs from one that does not."""
    whole = configuration({"dp": 3}, out=str(tmp_path / "whole"), offload=False, steps=6)
    launch(whole, lambda _: [])
    config = configuration({"dp": 3}, out=str(tmp_path / "moved"), steps=6)
    for steps, offload in ((2, False), (4, True), (6, False)):
        part = replace(
            config,
            steps=steps,
            optimizer=replace(config.optimizer, offload=offload, decay_steps=6),
            checkpoint=replace(config.checkpoint, every=2, resume="auto"),
        )
        launch(part, lambda _: [])
    assert losses(Path(config.out)) == losses(Path(whole.out))


@pytest.mark.slow
def test_a_trace_shows_both_copies_of_a_step(tmp_path):
    config = configuration({"dp": 3}, out=str(tmp_path), steps=3)
    evidence = replace(config.evidence, trace_steps=(1, 2), faults=("slow_host_link:rank=1,delay_ms=30",))
    launch(replace(config, evidence=replace(evidence, measure_lag=False)), lambda _: [])
    longest = {}
    for rank in range(3):
        events = json.loads(gzip.decompress((tmp_path / "trace" / f"rank{rank}.json.gz").read_bytes()))
        spans = [e for e in events["traceEvents"] if e.get("name", "").startswith("reftrain::copy_to_")]
        assert [s["name"].removeprefix("reftrain::copy_to_") for s in spans] == ["host", "device"] * 2
        longest[rank] = min(s["dur"] for s in spans)
    assert longest[1] > 30_000
    row = json.loads((tmp_path / "metrics" / "rank0.jsonl").read_text().splitlines()[-1])
    assert row["memory"]["optimizer"] == 0 < row["memory"]["host"]


def test_a_slow_host_link_needs_copies():
    config = configuration({"dp": 3}, offload=False)
    planted = replace(config, evidence=replace(config.evidence, faults=("slow_host_link:rank=1",)))
    with pytest.raises(ConfigError, match="offload = true"):
        read_faults(planted)
