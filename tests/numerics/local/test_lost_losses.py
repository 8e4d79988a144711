"""A loss that the model keeps beside its output and that one run's gradients lack, where no outputs can be compared."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from numerics import watch
from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove

WIDE = 6


class Net(nn.Module):
    """Takes statistics over a batch, and keeps a loss of its own."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE), nn.Linear(WIDE, 5)

    def forward(self, x):
        hidden = self.a(x)
        self.balance = hidden.softmax(-1).square().mean()
        return self.b(torch.relu(self.norm(hidden)))


def built():
    torch.manual_seed(1)
    net = Net()
    return net, torch.optim.SGD(net.parameters(), lr=0.1)


def trained(folder, weight):
    """Two micro-batches, each with statistics of its own, as the run declares."""
    net, optimizer = built()
    config = {"layout": {"batch_statistics": "local"}}
    watcher = watch(net, optimizer, micro_batches=2, out=folder, level="tensors", config=config)
    drawn = torch.Generator().manual_seed(2)
    for _ in range(2):
        x, y = torch.randn(4, WIDE, generator=drawn), torch.randint(0, 5, (4,), generator=drawn)
        loss = functional.cross_entropy(net(x), y) / 2
        (loss + weight * net.balance).backward()
    optimizer.step()
    watcher.close()


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_a_loss_of_the_baseline_alone_is_left_open(tmp_path, weight):
    trained(tmp_path / "run", weight)
    trained(tmp_path / "base", 0.5)
    model, optimizer = built()
    found = compare(
        tmp_path / "run", tmp_path / "base", Options(prove=partial(prove, model=model, optimizer=optimizer))
    )
    assert (found.verdict == "undecided") == (not weight), found.reason
    assert weight or "contributes to gradients of the baseline but not of the run" in found.reason
