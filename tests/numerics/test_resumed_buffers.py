"""A run that goes on from a checkpoint takes over the buffers of the rank that saved it, or is said to lack them."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from numerics import watch
from numerics.comparison.compare import compare

WIDE, SEQUENCES, STEPS, SAVED = 8, 12, 4, 2


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE), nn.Linear(WIDE, 10)

    def forward(self, x):
        return self.b(torch.relu(self.norm(self.a(x))))


def trained(rank, world, store, folder, habit=""):
    """Train from the start and save after two steps; with a habit, go on from there as the habit has it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = net = Net()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    saved = folder / "saved.pt"
    if habit:
        held = torch.load(saved, weights_only=True)
        kept = {n: v for n, v in held["model"].items() if habit == "all" or n in dict(net.named_parameters())}
        net.load_state_dict(kept, strict=False)
        optimizer.load_state_dict(held["optimizer"])
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        model = nn.parallel.DistributedDataParallel(net, broadcast_buffers=False)
    watcher = watch(model, optimizer, out=folder / (habit or "base"), level="tensors")
    for step in range(SAVED if habit else 0, STEPS):
        random = torch.Generator().manual_seed(step)
        x = torch.randn(SEQUENCES, WIDE, generator=random).chunk(world)[rank]
        y = torch.randint(0, 10, (SEQUENCES,), generator=random).chunk(world)[rank]
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if not habit and step + 1 == SAVED and rank == 0:
            torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, saved)
    watcher.close()
    if world > 1:
        dist.destroy_process_group()


def found(folder, habit):
    return compare(folder / habit, folder / "base")


def test_lost_statistics_are_named(tmp_path):
    for habit in ("", "weights", "all"):
        trained(0, 1, None, tmp_path, habit)
    lost = found(tmp_path, "weights")
    assert lost.verdict == "bug", lost.reason
    text = "its buffers were not restored: 3 of them are not the baseline's (norm.num_batches_tracked, norm.running"
    assert text in lost.reason
    assert "buffers" not in found(tmp_path, "all").reason
    assert found(tmp_path, "all").verdict == "identical", found(tmp_path, "all").reason


@pytest.mark.slow
def test_statistics_of_the_saving_rank_are_not_lost(ranks, tmp_path):
    """Each rank keeps its own; a checkpoint holds those of rank 0."""
    for habit in ("", "weights", "all"):
        ranks.run(trained, 3, tmp_path, habit)
    assert "were not restored" in found(tmp_path, "weights").reason
    assert "were not restored" not in found(tmp_path, "all").reason
