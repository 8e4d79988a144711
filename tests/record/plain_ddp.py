"""DDP on Gloo as a newcomer profiles it: stock torch, one process group, nothing of this project."""

import time
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

SLEPT_S = 0.08
SLOW = 1


class Sleeps(torch.autograd.Function):
    """Sleeps in its backward."""

    @staticmethod
    def forward(_ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(_ctx, grad):
        time.sleep(SLEPT_S)
        return grad


def asleep(*_):
    time.sleep(SLEPT_S)


def train(kind: str, rank: int, folder: Path) -> None:
    """Train eight steps, six of them recorded; rank 1 sleeps in each where `kind` says."""
    torch.manual_seed(0)
    parts = [nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128)) for _ in range(4)]
    model, slow = nn.Sequential(*parts), rank == SLOW
    ddp = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=0.2)
    optimizer = torch.optim.AdamW(ddp.parameters())
    if slow and kind == "forward":
        parts[1].register_forward_pre_hook(asleep)
    if slow and kind == "hook":
        parts[1][0].weight.register_hook(asleep)
    if slow and kind == "backward":
        parts[2].register_forward_pre_hook(lambda _, given: (Sleeps.apply(given[0]),))
    recorded = schedule(wait=1, warmup=1, active=6)
    with profile(activities=[ProfilerActivity.CPU], schedule=recorded) as profiler:
        for _ in range(8):
            if slow and kind == "loader":
                asleep()
            ddp(torch.randn(32, 128)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
    (folder / "trace").mkdir(exist_ok=True)
    profiler.export_chrome_trace(str(folder / "trace" / f"rank{rank}.json"))
