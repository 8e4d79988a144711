"""A convolution net with BatchNorm: each rank's own statistics, statistics of all ranks, frozen ones."""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from numerics import watch
from tests.trainers.case import THREE, Case, run
from tests.trainers.parts import backward

STEPS = 3
CLASSES, CHANNELS, SIDE, BATCH = 5, 6, 6, 24


class Net(nn.Module):
    """Two convolutions, each with a norm, and a classifier."""

    def __init__(self, norm: type[nn.Module] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, CHANNELS, 3), norm(CHANNELS)
        self.conv2, self.norm2 = nn.Conv2d(CHANNELS, CHANNELS, 3), norm(CHANNELS)
        self.head = nn.Linear(CHANNELS, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """Images (B, 3, H, W) to logits (B, C)."""
        x = functional.relu(self.norm1(self.conv1(images)))
        x = functional.relu(self.norm2(self.conv2(x)))
        logits: Tensor = self.head(x.mean((2, 3)))
        return logits


class SumOverRanks(torch.autograd.Function):
    """An all-reduce whose gradient is an all-reduce."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """The sum over all ranks."""
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        """The sum of gradients over all ranks."""
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad


class SyncedNorm(nn.BatchNorm2d):
    """BatchNorm over the images of all ranks, as SyncBatchNorm does on cards."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalises (B, C, H, W) by the mean and variance over all ranks."""
        if not self.training or not dist.is_initialized():
            return super().forward(x)
        count = x.numel() / x.shape[1] * dist.get_world_size()
        stacked = torch.stack([x.sum((0, 2, 3)), (x * x).sum((0, 2, 3))])
        sums = SumOverRanks.apply(stacked)  # type: ignore[no-untyped-call]
        mean, square = sums[0] / count, sums[1] / count
        variance = square - mean * mean
        assert self.running_mean is not None
        assert self.running_var is not None
        with torch.no_grad():
            self.running_mean.lerp_(mean, 0.1)
            self.running_var.lerp_(variance * count / (count - 1), 0.1)
        shape = (1, -1, 1, 1)
        normal = (x - mean.view(shape)) * (variance.view(shape) + self.eps).rsqrt()
        out: Tensor = normal * self.weight.view(shape) + self.bias.view(shape)
        return out


def build() -> tuple[Net, torch.optim.Optimizer]:
    """The whole net with BatchNorm, and its optimiser."""
    torch.manual_seed(0)
    net = Net()
    return net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)


def build_frozen() -> tuple[Net, torch.optim.Optimizer]:
    """The same with norms in eval mode."""
    net, optimizer = build()
    freeze(net)
    return net, optimizer


def freeze(net: nn.Module) -> None:
    """Puts all norms into eval mode."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


def images(step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
    """A rank's share of a step's images and labels."""
    generator = torch.Generator().manual_seed(step)
    drawn = torch.randn(BATCH, 3, SIDE, SIDE, generator=generator)
    labels = torch.randint(0, CLASSES, (BATCH,), generator=generator)
    return drawn.chunk(world)[rank].contiguous(), labels.chunk(world)[rank]


def train(rank: int, world: int, norm: str = "own", bug: str = "") -> None:
    """DDP over a small image classifier, with a validation pass after the first step."""
    torch.manual_seed(0)
    net = Net(SyncedNorm if norm == "synced" else nn.BatchNorm2d)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    if norm == "frozen":
        freeze(net)
    wrapped = DistributedDataParallel(net, broadcast_buffers=norm == "own" and bug != "buffers apart")
    watcher = watch(wrapped, optimizer)
    for step in range(STEPS):
        x, labels = images(step, rank, world)
        backward(functional.cross_entropy(wrapped(x), labels))
        optimizer.step()
        optimizer.zero_grad()
        if step == 0 and bug == "left in eval":
            net.eval()
    watcher.close()


HEALTHY = (
    Case("batch_norm_own", run(train, 3), build, run(train, 3), questions=THREE),
    Case("batch_norm_own_against_one", run(train, 3), build, run(train, 1)),
    Case("batch_norm_synced", run(train, 3, norm="synced"), build, run(train, 1), questions=THREE),
    Case("batch_norm_frozen", run(train, 3, norm="frozen"), build_frozen, run(train, 1, norm="frozen")),
)
BROKEN = (
    Case(
        "batch_norm_buffers_apart",
        run(train, 3, bug="buffers apart"),
        build,
        run(train, 3),
        planted="running statistics differ between ranks, and the first rank's are saved",
        source="pytorch#30718",
        where=r"running|buffer|norm",
        reason=r"running|buffer|norm",
        word=r"running|buffer",
    ),
    Case(
        "batch_norm_left_in_eval",
        run(train, 3, bug="left in eval"),
        build,
        run(train, 3),
        planted="train() is forgotten after validation: norms use running statistics from step 1",
        where=r"norm",
        reason=r"norm|eval|training",
        word=r"eval|training mode",
    ),
)
CASES = (*HEALTHY, *BROKEN)
