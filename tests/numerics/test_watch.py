"""`watch` in trainers of others: plain, and FSDP2 + DTensor, meeting on the same global tensors."""

import functools
import json
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import torch
from torch import nn
from tracekit_cli import numerics

from numerics.comparison.compare import compare
from numerics.record.placement import _chunk, boxes_of
from numerics.record.watch import watch
from numerics.record.wrapped_models import clean_name
from numerics.schema import Box
from numerics.store import open_capture
from tests.marks import quick_first

TRAINER = """
import os, sys
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from numerics import watch

kind, out = sys.argv[1], sys.argv[2]
torch.set_num_threads(1)
rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 3))
dp = (0, 1)
if world > 1:
    dist.init_process_group("gloo", init_method=f"file://{out}.store", rank=rank, world_size=world)
    if kind == "fsdp":
        mesh, dp = init_device_mesh("cpu", (world,), mesh_dim_names=("dp",)), (rank, world)
    else:
        mesh, dp = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), (rank // 2, 2)
        parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = mesh["dp"]
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for layer in (model, model[0], model[2]):
        layer.set_gradient_divide_factor(1.0)
        layer.set_force_sum_reduction_for_comms(enable=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
watcher = watch(
    model, optimizer, dp=dp, micro_batches=2, out=None if kind == "switch" else out, collectives=kind == "fsdp"
)
data = torch.randn(3, 12, 6, generator=torch.Generator().manual_seed(1))
share = 12 // dp[1]
for step in range(3):
    for micro_batch in data[step, dp[0] * share : (dp[0] + 1) * share].chunk(2):
        loss = model(micro_batch).square().sum() / 36
        loss.backward()
        watcher.record("loss", loss, partial=f"dp={dp[0]}")
    optimizer.step()
    optimizer.zero_grad()
watcher.close()
if world > 1:
    dist.destroy_process_group()
"""


def trainer(folder):
    """The file of a trainer of somebody else."""
    script = folder / "train.py"
    script.write_text(TRAINER)
    return script


def trained(ranks, folder, kind, world):
    """Folder that the trainer's ranks recorded into: programs of their own, as somebody else's trainer starts them."""
    script, attempts = trainer(folder), []
    for attempt in range(
        2
    ):  # once in hundreds of starts on a busy machine Gloo's ranks wait for ever to be connected
        out = folder / f"{kind}{attempt}"
        places = [{"RANK": str(rank), "WORLD_SIZE": str(world)} if world > 1 else {} for rank in range(world)]
        jobs = [ranks.script(script, kind, out, environment=place) for place in places]
        attempts.append([end_of(job) for job in jobs])
        if not any("in init_process_group" in words for _, words in attempts[-1]):
            break
    assert [code for code, _ in attempts[-1]] == [0] * world, attempts
    return out


def end_of(job):
    """(Exit code, last words) of a program; (None, where it stands) of one that does not end."""
    try:
        done = job.wait(60)
    except AssertionError as error:
        return None, str(error)
    return done.returncode, done.stderr[-2000:]


WORLDS = {"plain": 1, "fsdp": 3, "both": 4}


@pytest.fixture(scope="module")
def runs(ranks, tmp_path_factory):
    """Function from a kind of run to its folder; each is made when first asked for."""
    folder = tmp_path_factory.mktemp("watch")
    return functools.cache(lambda kind: trained(ranks, folder, kind, WORLDS[kind]))


def rows(run: Path, rank=0):
    return pq.read_table(run / "capture" / f"rank{rank:05d}.parquet").to_pylist()


def test_a_plain_trainer_is_recorded_whole(runs):
    found = rows(runs("plain"))
    names = {(r["phase"], r["kind"], r["tensor"]) for r in found}
    assert {
        ("init", "param", "0.weight"),
        ("forward", "activation", "0.out"),
        ("forward", "activation", "out"),
        ("backward", "activation_grad", "0.out.grad"),
        ("reduce", "param_grad", "2.bias.grad"),
        ("step", "param", "2.weight"),
        ("step", "optimizer", "0.weight.exp_avg"),
        ("forward", "scalar", "loss"),
    } <= names
    outputs = [r for r in found if r["tensor"] == "0.out" and r["step"] == 1]
    assert [(r["micro_batch"], r["boxes"], r["global_shape"]) for r in outputs] == [
        (0, "0+6,0+10", "12x10"),
        (1, "6+6,0+10", "12x10"),
    ]
    assert [r["order"] for r in found] == list(range(len(found)))


@pytest.mark.parametrize("kind", quick_first(0, ["fsdp", "both"]))
def test_fsdp_and_tensor_parallel_runs_meet_the_plain_one(runs, kind):
    """Forward and initial values are equal in bits under FSDP; tensors of all runs align, whatever the mesh."""
    finding = compare(runs(kind), runs("plain"))
    assert finding.verdict in {"undecided", "identical"}
    assert finding.tensors.compared > 60
    same = {(c.step, c.phase): c.differ for c in finding.cells if c.module == "0"}
    assert same[-1, "init"] == 0
    assert kind != "fsdp" or same[0, "forward"] == 0  # sharded weights change no bit of it
    assert all(w.rel < 1e-4 for w in finding.largest_differences)


def test_a_run_equals_itself(runs):
    assert compare(runs("fsdp"), runs("fsdp")).verdict == "identical"


def test_shards_of_uneven_rows_are_placed(runs):
    held = [r for rank in range(3) for r in rows(runs("fsdp"), rank) if r["tensor"] == "0.weight"]
    assert {r["boxes"] for r in held if r["phase"] == "forward"} == {"0+10,0+6"}  # gathered
    shards = {r["boxes"] for r in held if r["phase"] != "forward"}
    assert shards == {"0+4,0+6", "4+4,0+6", "8+2,0+6"}


@pytest.mark.slow
def test_shards_beside_tensor_parallel_are_placed(runs):
    both = {
        r["rank"]: r["boxes"]
        for rank in range(4)
        for r in rows(runs("both"), rank)
        if r["tensor"] == "0.weight"
    }
    assert both == {0: "0+3,0+6", 1: "5+3,0+6", 2: "3+2,0+6", 3: "8+2,0+6"}
    assert set(open_capture(runs("both")).table.column("dp").to_pylist()) == {0, 1}


def test_collectives_are_recorded_with_what_they_take_and_give(runs):
    found = [r for r in rows(runs("fsdp")) if r["op"]]
    assert {r["op"] for r in found} >= {"all_gather", "reduce_scatter"}
    reduced = [r for r in found if r["op"] == "reduce_scatter" and r["step"] == 1]
    assert {r["group"] for r in reduced} == {"0,1,2"}
    given = sum(r["numel"] for r in reduced if r["kind"] == "collective_in")
    got = sum(r["numel"] for r in reduced if r["kind"] == "collective_out")
    assert given == 3 * got > 0
    # each rank's share of a reduction is the sum of all inputs: the sketches of inputs and outputs add up alike
    both = [
        r
        for rank in range(3)
        for r in rows(runs("fsdp"), rank)
        if r["op"] == "reduce_scatter" and r["step"] == 1
    ]
    total = {k: sum(r["sum"] for r in both if r["kind"] == k) for k in ("collective_in", "collective_out")}
    assert total["collective_in"] == pytest.approx(total["collective_out"], rel=1e-5, abs=1e-5)


def ended(monkeypatch, *arguments):
    """Exit code of `numerics ARGUMENTS`, called in this process."""
    monkeypatch.setattr(sys, "argv", ["numerics", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        numerics.main()
    return stop.value.code


@pytest.mark.slow
def test_numerics_capture_switches_a_trainer_on(monkeypatch, capfd, tmp_path):
    out, none = tmp_path / "recorded", tmp_path / "none"
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")
    options = ["--level", "tensors", "--names", "loss"]
    command = [sys.executable, trainer(tmp_path), "switch", out]
    assert ended(monkeypatch, "capture", "--out", out, *options, "--", *command) == 0
    capture = open_capture(out)
    assert capture.level == "tensors"
    kept = {r["tensor"] for r in capture.table.to_pylist() if r["values"]}
    assert kept == {"loss"}
    capfd.readouterr()
    assert ended(monkeypatch, "capture", "--out", none, "--", sys.executable, "-c", "pass") == 3
    assert "recorded nothing" in capfd.readouterr().err
    failing = [sys.executable, "-c", "raise SystemExit(7)"]
    assert ended(monkeypatch, "capture", "--out", none, "--", *failing) == 7


def test_without_a_switch_nothing_is_done(tmp_path, monkeypatch):
    monkeypatch.delenv("NUMERICS_CAPTURE", raising=False)
    model = nn.Linear(2, 2)
    watcher = watch(model, torch.optim.SGD(model.parameters()))
    model(torch.ones(1, 2)).sum().backward()
    watcher.record("loss", torch.ones(()))
    watcher.close()
    assert not model._forward_hooks


def test_names_of_wrappers_are_left_out():
    assert clean_name("module._orig_mod.layers.0._checkpoint_wrapped_module.mlp") == "layers.0.mlp"
    assert clean_name("module") == ""


def test_strided_shards_become_several_boxes():
    rows_of = torch.arange(12)
    strided = _chunk(rows_of, 2, 1, 3)  # second half of each of three pieces
    assert boxes_of([strided, torch.arange(5)]) == (
        Box((2, 0), (2, 5)),
        Box((6, 0), (2, 5)),
        Box((10, 0), (2, 5)),
    )
    assert boxes_of([rows_of[:0]]) == (Box((0,), (0,)),)


def test_the_stamp_says_what_it_was_computed_on(runs):
    stamp = json.loads((runs("fsdp") / "capture" / "stamp.json").read_text())
    assert stamp["world_size"] == 3
    environment = stamp["environment"]
    assert environment["torch"] == torch.__version__
    assert {
        "cpu_capability",
        "onednn",
        "threads",
        "nccl",
        "settings",
        "gpus",
        "processor",
    } <= environment.keys()
