"""BatchNorm under micro-batches, in trainers as users write them: different by design, neither a bug nor a rounding."""

import sys

import pytest

from numerics.comparison.compare import Options, compare
from numerics.local.model_source import build_model
from numerics.local.proof import prove
from tests.numerics.test_trainers_documented import free_port, started

MODEL = """
import torch
import torch.distributed as dist
from torch import nn


class SumOver(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


class Synced(nn.BatchNorm2d):
    def forward(self, x):
        if not self.training or not dist.is_initialized() or dist.get_world_size() == 1:
            return super().forward(x)
        c = x.shape[1]
        count = x.new_tensor([x.numel() / c])
        sums = SumOver.apply(torch.cat([x.sum((0, 2, 3)), x.square().sum((0, 2, 3)), count]))
        mean, square, n = sums[:c] / sums[-1], sums[c : 2 * c] / sums[-1], sums[-1].detach()
        spread = square - mean.square()
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.1)
            self.running_var.lerp_(spread * n / (n - 1), 0.1)
        shape = (1, -1, 1, 1)
        y = (x - mean.view(shape)) * (spread.view(shape) + self.eps).rsqrt()
        return y * self.weight.view(shape) + self.bias.view(shape)


class Net(nn.Module):
    def __init__(self, norm):
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(2, 6, 3), norm(6)
        self.body, self.body_norm = nn.Conv2d(6, 8, 3, stride=2), norm(8)
        self.head = nn.Linear(8, 7)

    def forward(self, x):
        x = nn.functional.gelu(self.stem_norm(self.stem(x)))
        return self.head(nn.functional.gelu(self.body_norm(self.body(x))).flatten(2).mean(-1))


def made(norm):
    torch.manual_seed(5)
    net = Net(norm)
    return net, torch.optim.AdamW(net.parameters(), lr=0.01)


def own():
    return made(nn.BatchNorm2d)


def synced():
    return made(Synced)
"""
TRAINER = """
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import model
from numerics import watch

dist.init_process_group("gloo")
net, optimizer = model.{norm}()
net = DistributedDataParallel(net)
watcher = watch(net, optimizer, micro_batches={parts})
for step in range(2):
    drawn = torch.Generator().manual_seed(step)
    images, labels = torch.randn(24, 2, 9, 9, generator=drawn), torch.randint(0, 7, (24,), generator=drawn)
    images, labels = (t.chunk(dist.get_world_size())[dist.get_rank()] for t in (images, labels))
    for x, y in zip(images.chunk({parts}), labels.chunk({parts})):
        (cross_entropy(net(x), y) / {parts}).backward()
    optimizer.step()
    optimizer.zero_grad()
watcher.close()
dist.destroy_process_group()
"""


@pytest.fixture
def question(ranks, tmp_path, monkeypatch):
    """Train (norm, ranks, micro-batches), and ask about it alone or beside another one."""

    def recorded(norm, world, parts):
        folder = tmp_path / f"{norm}-{world}-{parts}"
        if not folder.exists():
            folder.mkdir()
            (folder / "model.py").write_text(MODEL)
            (folder / "train.py").write_text(TRAINER.format(norm=norm, parts=parts))
            ranks.run(started, world, folder, "train.py", free_port())
        return folder

    def asked(run, baseline=None):
        folder = recorded(*run)
        other = recorded(*baseline) / "run" if baseline else None
        monkeypatch.setattr(sys, "path", [*sys.path])
        net, optimizer = build_model(f"{folder / 'model.py'}:{run[0]}")
        sys.modules.pop("model", None)
        return compare(folder / "run", other, Options(prove=lambda columns: prove(columns, net, optimizer)))

    return asked


CASES = [
    (("own", 1, 3), None),
    (("own", 1, 3), ("own", 1, 1)),
    (("own", 3, 2), None),
    (("own", 3, 2), ("own", 1, 1)),
    (("own", 3, 2), ("own", 3, 1)),
    (("synced", 3, 2), ("synced", 1, 1)),
    (("synced", 3, 2), None),
]


@pytest.mark.slow
@pytest.mark.parametrize(("run", "baseline"), CASES)
def test_parts_of_a_batch_differ_by_design(question, run, baseline):
    found = question(run, baseline)
    assert found.verdict == "undecided"
    assert "stem_norm" in found.reason
    assert "different by design, neither drift nor a bug" in found.reason


@pytest.mark.slow
def test_one_batch_over_all_ranks_is_proved(question):
    assert question(("synced", 3, 1)).verdict in {"identical", "rounding"}
    assert question(("synced", 3, 1), ("own", 1, 1)).verdict in {"identical", "rounding", "drift"}


@pytest.mark.slow
def test_splits_that_are_alike_are_not_said_to_differ(question):
    found = question(("synced", 3, 2), ("own", 3, 2))
    assert found.verdict == "undecided"
    assert "differently" not in found.reason
    assert "both split the batch over 3 data-parallel ranks with 2 micro-batches" in found.reason
