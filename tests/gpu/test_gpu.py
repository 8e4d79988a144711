"""What only a GPU can show: NCCL, FSDP2, flash and Flex attention, MFU, a recorded trace, the allocator's snapshot.

Skipped, with the reason, where there is none (`make gpu` says so). Where there are fewer than a layout's ranks,
the ranks share them, and NCCL runs between them through sockets.
"""

import gzip
import json
import pickle
import re
import subprocess
import sys
from collections import Counter

import pytest
import torch

from reftrain.config.file import load
from reftrain.data.batches import Loader
from reftrain.model.attention import attend, choose_kernel
from reftrain.model.batch import Cutter
from reftrain.model.flops import flops_per_token, peak_flops
from reftrain.rank.comm import Axis
from reftrain.rank.hooks import Hooks

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS == 0, reason="needs an NVIDIA GPU; torch finds none here")
TINY = ["--preset", "tiny", "--set", "data.seq_len=64", "--set", "data.batch_size=8"]
SMALL = ["--preset", "small", "--steps", "3", "--set", "data.batch_size=4", "--set", "data.seq_len=512"]


def command(program, *arguments):
    text = f"import sys; from tracekit_cli.{program} import main; sys.argv[0] = {program!r}; main()"
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done


def shared(ranks):
    return ["--set", f"run.share_gpus={str(ranks > GPUS).lower()}"]


def train(out, *arguments):
    """Losses of the run's steps, and what the command said."""
    said = command("reftrain", "run", *SMALL, "--out", out, *arguments).stderr
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", said)], said


def metrics(out, rank=0):
    return [json.loads(line) for line in (out / "metrics" / f"rank{rank}.jsonl").read_text().splitlines()]


def trace_of(out, rank=0):
    return json.loads(gzip.decompress((out / "trace" / f"rank{rank}.json.gz").read_bytes()))


def cutter(kernel, *, document_mask):
    alone = Axis("cp", 0, [0], None, Hooks())
    return Cutter(
        cp=alone, ring=False, document_mask=document_mask, attention=kernel, head_dim=64,
        rope_base=500_000.0, wide=torch.float32, device=torch.device("cuda"),
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # torch's own compiler raises it
@pytest.mark.parametrize(("kernel", "document_mask"), [("flash", False), ("flex", True)])
def test_kernels_equal_the_masked_one(kernel, document_mask):
    config = load(None, {"data": {"seq_len": 256, "batch_size": 2, "micro_batch_size": 2}})
    batch = Loader(config.data, 260, 1, 0).step(0)[0]
    torch.manual_seed(0)
    q = torch.randn(2, 8, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    k, v = (torch.randn(2, 4, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in "kv")
    results = []
    for name in (kernel, "sdpa"):
        out = attend(name, q, k, v, cutter(name, document_mask=document_mask).cut(batch))
        results.append([out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))])
    for ours, masked in zip(*results, strict=True):
        assert (ours.float() - masked.float()).norm() / masked.float().norm() < 1e-2


def test_auto_takes_the_fastest_kernel():
    device = torch.device("cuda")
    assert choose_kernel("auto", device, document_mask=False, cp=1, head_dim=64) == "flash"
    assert choose_kernel("auto", device, document_mask=True, cp=1, head_dim=64) == "flex"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A run on one GPU, its last two steps traced: folder, losses, what was said."""
    out = tmp_path_factory.mktemp("gpu")
    return out, *train(out, "--trace", "1:3", "--set", "evidence.memory_snapshot=true")


def test_gpu_and_cpu_runs_learn_the_same(alone, tmp_path):
    _, on_gpu, _ = alone
    on_cpu, _ = train(tmp_path / "cpu", "--set", "run.device=cpu")
    assert on_gpu == pytest.approx(on_cpu, rel=2e-3)


def test_flash_trains_as_the_masked_kernel_does(tmp_path):
    losses = [
        train(
            tmp_path / name, "--set", "numerics.document_mask=false", "--set", f"numerics.attention={name}"
        )[0]
        for name in ("flash", "sdpa")
    ]
    assert losses[0] == pytest.approx(losses[1], rel=2e-3)


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_fsdp_on_one_gpu_changes_nothing(alone, tmp_path, zero):
    _, usual, _ = alone
    sharded, _ = train(tmp_path, "--set", f"mesh.zero={zero}")
    assert sharded == pytest.approx(usual, rel=2e-3)


def test_mfu_is_the_share_of_the_devices_peak(alone):
    out, _, said = alone
    config = load(None, {"model": {"preset": "small"}, "data": {"batch_size": 4, "seq_len": 512}})
    peak = peak_flops(config, torch.device("cuda"))
    if peak is None:
        pytest.skip(f"the peak of {torch.cuda.get_device_name()} is not known: set run.peak_tflops")
    work = 4 * 512 * flops_per_token(config.model, 512)
    for row in metrics(out):
        assert row["mfu"] == pytest.approx(work / row["step_s"] / peak, rel=1e-6)
        assert 0 < row["mfu"] < 1
    assert re.search(r"MFU \d+\.\d%", said)


def test_memory_by_kind_lies_within_the_allocators_peak(alone):
    out, _, _ = alone
    for row in metrics(out):
        kinds = row["memory"]
        assert 0 < kinds["weights"] + kinds["optimizer"] <= kinds["allocated"] <= kinds["reserved"]


def test_tracekit_reads_a_recorded_trace_with_kernels(alone, tmp_path):
    out, _, _ = alone
    events = trace_of(out)["traceEvents"]
    assert sum(event.get("cat") == "kernel" for event in events) > 100
    assert sum(str(event.get("name", "")).startswith("ProfilerStep#") for event in events) >= 2
    command("tracekit", "ingest", out, "--out", tmp_path / "tables", "--quiet")
    assert (tmp_path / "tables" / "manifest.json").exists()


def test_the_snapshot_tells_who_allocated(alone):
    out, _, _ = alone
    snapshot = pickle.loads((out / "memory" / "rank0.pickle").read_bytes())  # our own, from the line above
    history = [event for device in snapshot["device_traces"] for event in device]
    assert {"alloc", "free_completed"} <= {event["action"] for event in history}
    files = {frame["filename"] for event in history for frame in event.get("frames", [])}
    assert any("reftrain" in name for name in files)
    assert snapshot["segments"]


def test_a_rank_without_a_gpu_is_told(tmp_path):
    """One rank more than there are GPUs."""
    size = GPUS + 1
    done = subprocess.run(
        [sys.executable, "-m", "tracekit_cli.reftrain", "run", *SMALL, "--mesh", f"dp={size}",
         "--set", f"data.batch_size={size}", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"rank {GPUS} of this machine has no GPU of {GPUS}" in done.stderr


@pytest.mark.parametrize("mesh", ["tp=2", "cp=2", "pp=2", "dp=2"])
def test_layouts_on_nccl(alone, tmp_path, mesh):
    _, usual, _ = alone
    together, _ = train(tmp_path, "--mesh", mesh, "--set", "mesh.zero=3", *shared(2))
    assert together == pytest.approx(usual, rel=2e-3)


def test_sixteen_ranks_on_nccl_learn_what_one_does(tmp_path):
    mesh = ["--mesh", "tp=2,cp=2,pp=2,dp=2", "--set", "mesh.zero=2", *shared(16)]
    losses = []
    for name, extra in (("sixteen", mesh), ("one", [])):
        said = command(
            "reftrain", "run", *TINY, "--set", "model.layers=4", "--steps", 3,
            "--set", "numerics.policy=fp32", "--out", tmp_path / name, *extra,
        ).stderr  # fmt: skip
        losses.append([float(loss) for loss in re.findall(r"loss (\d+\.\d+)", said)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_nccl_names_each_traced_collective_once_a_rank(tmp_path):
    train(tmp_path, "--mesh", "dp=2", "--set", "mesh.zero=2", "--trace", "1:3", *shared(2))
    seen = []
    for rank in range(2):
        events = trace_of(tmp_path, rank)["traceEvents"]
        calls = Counter(
            (event["args"]["Process Group Name"], event["args"]["Collective name"])
            for event in events
            if event.get("name") == "record_param_comms" and event["args"]["Collective name"] != "wait"
        )
        kernels = Counter(
            (event["args"]["Process Group Name"], event["args"]["Collective name"])
            for event in events
            if event.get("cat") == "kernel" and event["name"].startswith("nccl")
        )
        assert calls == kernels, "each call is recorded once and runs one kernel"
        assert any("reduce_scatter" in name for _, name in calls)
        seen.append(calls)
    assert seen[0] == seen[1]
    answer = json.loads(command("tracekit", "slowrank", tmp_path, "--json", "-", "--quiet").stdout)
    assert answer["mesh"]["sizes"]["dp"] == 2
    assert "group_members_unknown" not in [issue["kind"] for issue in answer["quality"]]


def test_a_slow_rank_on_gpus_is_found(tmp_path):
    """Ranks that share a GPU take turns on it, so that a slow one slows all: there no other rank is accused."""
    train(tmp_path, "--mesh", "dp=2", "--steps", "6", "--trace", "2:6", *shared(2),
          "--fault", "slow_compute:rank=1,factor=3", "--set", "evidence.measure_lag=false")  # fmt: skip
    answer = json.loads(command("tracekit", "slowrank", tmp_path, "--json", "-", "--quiet").stdout)
    named = [suspect["rank"] for suspect in answer["suspects"]]
    assert named == [1] or (GPUS < 2 and not named), answer


@pytest.mark.parametrize(
    ("kind", "said"),
    [("skip_collective", "host_stalled"), ("host_stall", "host_stalled"), ("hold_gil", "host_stalled")],
)
def test_a_hang_on_nccl_is_found_in_its_dumps(tmp_path, kind, said):
    """Four ranks; torch's watchdog ends the job."""
    done = subprocess.run(
        [sys.executable, "-m", "tracekit_cli.reftrain", "run", *TINY, "--mesh", "dp=4", "--steps", "5",
         "--fault", f"{kind}:rank=2,axis=dp,steps=2", "--set", "evidence.timeout_s=15", *shared(4),
         "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr[-2000:]
    dumps = sorted((tmp_path / "fr").iterdir())
    assert dumps, done.stderr[-2000:]
    answer = json.loads(command("tracekit", "hang", tmp_path / "fr", "--json", "-", "--quiet").stdout)
    assert answer["verdict"] == "hang", answer
    assert [(c["rank"], c["kind"]) for c in answer["culprits"]] == [(2, said)], answer
