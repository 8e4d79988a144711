"""What only a GPU can show: NCCL, FSDP2, flash and Flex attention, MFU, and a recorded trace.

Skipped, with the reason, where there is none; with two or more, sharded layouts run too.
"""

import json
import re
import subprocess
import sys

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from reftrain.comm import Axis
from reftrain.config_file import load
from reftrain.data.batches import Loader
from reftrain.hooks import Hooks
from reftrain.model.attention import attend, choose_kernel
from reftrain.model.batch import Cutter
from reftrain.throughput import peak_flops

GPUS = torch.cuda.device_count()
pytestmark = pytest.mark.skipif(GPUS == 0, reason="needs an NVIDIA GPU; torch finds none here")
SMALL = ["--preset", "small", "--steps", "3", "--set", "data.batch_size=4", "--set", "data.seq_len=512"]


def train(tmp_path, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "tracekit_cli.reftrain", "run", *SMALL, "--out", str(tmp_path), *arguments],
        capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"loss (\d+\.\d+)", done.stderr)], done.stderr


def cutter(kernel, *, document_mask):
    alone = Axis("cp", 0, [0], None, Hooks())
    return Cutter(
        cp=alone, ring=False, document_mask=document_mask, attention=kernel, head_dim=64,
        rope_base=500_000.0, wide=torch.float32, device=torch.device("cuda"),
    )  # fmt: skip


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
    assert choose_kernel("auto", device, document_mask=False, cp=1) == "flash"
    assert choose_kernel("auto", device, document_mask=True, cp=1) == "flex"


def test_a_run_on_the_gpu_learns_what_the_cpu_does_and_knows_its_mfu(tmp_path):
    on_gpu, said = train(tmp_path / "gpu")
    on_cpu, _ = train(tmp_path / "cpu", "--set", "run.device=cpu")
    assert on_gpu == pytest.approx(on_cpu, rel=2e-3)
    if peak_flops(load(None, {}), torch.device("cuda")):
        assert re.search(r"MFU \d+\.\d%", said)


@pytest.mark.skipif(GPUS < 2, reason="NCCL layouts need two GPUs")
@pytest.mark.parametrize("mesh", ["tp=2", "cp=2", "pp=2", "dp=2"])
def test_layouts_on_nccl(tmp_path, mesh):
    alone, _ = train(tmp_path / "one")
    together, _ = train(tmp_path / "two", "--mesh", mesh, "--set", "mesh.zero=3")
    assert together == pytest.approx(alone, rel=2e-3)


def test_a_trace_names_kernels(tmp_path):
    from tests.reftrain import workers

    config = load(None, {"model": {"layers": 2}, "run": {"device": "cuda"}})
    with workers.trainer(0, 1, str(tmp_path / "store"), config, workers.HookList(), "cuda") as made:
        made.compute_gradients(0)
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as recorded:
            made.compute_gradients(1)
    path = tmp_path / "trace.json"
    recorded.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    assert sum(event.get("cat") == "kernel" for event in events) > 50
