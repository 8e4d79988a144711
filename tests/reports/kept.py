"""Runs with what a model keeps beside its weights: statistics, biases of routers, frequencies, scales of FP8."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tests.reports.report import Answer, Report
from tests.reports.trained import WIDTH, WORDS, Trainer
from tests.reports.wrong import HEALTHY, Batches, seen, verdict

EXPERTS, RATE = 3, 0.05


class SumOver(torch.autograd.Function):
    """The sum over ranks; so is that of gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


class BatchNorm(nn.Module):
    """Each feature normed over all tokens of the batch; `shared` takes the statistics over all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.zeros(WIDTH))
        self.register_buffer("running_mean", torch.zeros(WIDTH))
        self.shared = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, -2)
        sums = torch.cat([flat.sum(0), flat.square().sum(0), flat.new_tensor([len(flat)])])
        sums = SumOver.apply(sums) if self.shared else sums
        mean, square = (sums[:-1] / sums[-1]).chunk(2)
        self.running_mean = self.running_mean.lerp(mean.detach(), 0.1)
        return (x - mean) / (square - mean.square() + 1e-5).sqrt() * self.weight + self.bias


class Normed(nn.Module):
    """A model with batch norms."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.up = nn.Embedding(WORDS, WIDTH), BatchNorm(), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        logits: torch.Tensor = self.head(x + functional.gelu(self.up(self.norm(x))))
        return logits


class Scaled(nn.Module):
    """A product whose input is rounded to FP8 by a scale from its largest value; `shared` takes that of all ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH, WIDTH))
        nn.init.xavier_uniform_(self.weight)
        self.shared = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        largest = x.detach().abs().max()
        if self.shared:
            dist.all_reduce(largest, dist.ReduceOp.MAX)
        scale = largest / 448
        narrow = (x / scale).to(torch.float8_e4m3fn).to(x.dtype) * scale
        return (x + (narrow - x).detach()) @ self.weight.T


class Narrow(nn.Module):
    """A model with such a product."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.up = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH), Scaled()
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        logits: torch.Tensor = self.head(x + functional.gelu(self.up(self.norm(x))))
        return logits


class Balanced(nn.Module):
    """The best expert of each token by its score and a bias, which moves towards experts with few tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)])
        self.register_buffer("bias", torch.zeros(EXPERTS))
        self.counts = torch.zeros(EXPERTS)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        scores = self.gate(flat).sigmoid()
        chosen = (scores + self.bias).argmax(-1)
        self.counts += torch.bincount(chosen, minlength=EXPERTS)
        made = torch.stack([expert(flat) for expert in self.experts])[chosen, torch.arange(len(flat))]
        return (made * scores.gather(1, chosen[:, None])).view(x.shape)

    def balance(self, *, over_ranks: bool) -> None:
        """Move the bias by the counts of a step."""
        if over_ranks:
            dist.all_reduce(self.counts)
        self.bias = self.bias + RATE * (self.counts.mean() - self.counts).sign()
        self.counts = torch.zeros(EXPERTS)


class Sparse(nn.Module):
    """A model with one such layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.routed = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH), Balanced()
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        logits: torch.Tensor = self.head(x + self.routed(self.norm(x)))
        return logits


class Turned(nn.Module):
    """Attention with rotary positions, from frequencies that the module keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH)
        self.rotary, self.head = Rotary(), nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        cos, sin = self.rotary(torch.arange(ids.shape[1]))
        q, k = (
            part * cos + torch.cat([-part.chunk(2, -1)[1], part.chunk(2, -1)[0]], -1) * sin for part in (q, k)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        logits: torch.Tensor = self.head(x + self.out(mixed))
        return logits


class Rotary(nn.Module):
    """Cosines and sines of positions times frequencies; `narrow` counts positions in BF16."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("inv_freq", 1 / 100 ** (torch.arange(0, WIDTH, 2) / WIDTH))
        self.narrow = False

    def forward(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        at = positions.to(torch.bfloat16 if self.narrow else torch.float32).float()
        angles = at[:, None] * self.inv_freq.float()
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()


def made(kind: type[nn.Module]) -> Callable[[], tuple[nn.Module, torch.optim.Optimizer]]:
    """A maker of a model and its optimizer."""

    def make() -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(8)
        model = kind()
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    return make


built_normed, built_narrow, built_balanced, built_rotary = map(made, (Normed, Narrow, Sparse, Turned))


@dataclass(frozen=True)
class OneMicro(Trainer):
    """One micro-batch; gradients are averaged by hand, so that nothing else is sent."""

    micro: int = 1
    kind: type[nn.Module] = Normed
    shared: bool = True

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = made(self.kind)()
        for module in model.modules():
            if isinstance(module, BatchNorm | Scaled):
                module.shared = self.shared and dist.is_initialized()
        return model, optimizer

    def wrapped(self, model: nn.Module) -> nn.Module:
        return model

    def before_update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        for parameter in model.parameters() if dist.is_initialized() else ():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()

    def after_update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, world: int
    ) -> torch.optim.Optimizer:
        if isinstance(model, Sparse):
            model.routed.balance(over_ranks=self.shared and dist.is_initialized())
        return optimizer


@dataclass(frozen=True)
class Rotates(Trainer):
    """One process; frequencies are cast to BF16 with the model, or positions are counted in BF16."""

    cast: bool = False
    narrow: bool = False
    length: int = 8

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = built_rotary()
        rotary: Any = model.rotary
        rotary.narrow = self.narrow
        if self.cast:
            rotary.inv_freq = rotary.inv_freq.bfloat16()
        return model, optimizer

    def batches(self, step: int, rank: int, world: int) -> Batches:
        drawn = torch.Generator().manual_seed(70 + step)
        ids = torch.randint(1, WORDS, (4, self.length + 1), generator=drawn)
        return [(part[:, :-1], part[:, 1:]) for part in ids.chunk(self.micro)]


def beside(
    source: str,
    input_: str,
    expected: str,
    trainer: Trainer,
    sound: Trainer,
    judge: Callable[[Answer], str],
    model: str,
    *,
    ranks: int = 3,
    quick: bool = False,
) -> Report:
    """A report on a pair of runs of a model of this module."""
    more = {"model": model, "file": __file__, "ranks": ranks, "quick": quick}
    return seen(source, input_, expected, trainer, sound, judge, **more)


REPORTS: list[Report] = [
    beside(
        "pytorch/pytorch#62967",
        "batch norms over the tokens of all 3 ranks, beside one process",
        "no bug",
        OneMicro(),
        OneMicro(),
        HEALTHY,
        "built_normed",
    ),
    beside(
        "Lightning-AI/pytorch-lightning#6789",
        "batch norms over each rank's own tokens, beside one process",
        "the norm's outputs: each rank takes the statistics of its own tokens",
        OneMicro(shared=False),
        OneMicro(),
        verdict("bug", words=("norm.out",), must_say=True),
        "built_normed",
    ),
    beside(
        "NVIDIA/TransformerEngine#11",
        "FP8 inputs scaled by the largest value over all 3 ranks, beside one process",
        "no bug",
        OneMicro(kind=Narrow),
        OneMicro(kind=Narrow),
        HEALTHY,
        "built_narrow",
    ),
    beside(
        "NVIDIA/Megatron-LM#442",
        "the same by the largest value of each rank's own tokens",
        "the product's outputs: each rank scales by its own tokens",
        OneMicro(kind=Narrow, shared=False),
        OneMicro(kind=Narrow),
        verdict("bug", "precision_policy", words=("up.out",), must_say=True),
        "built_narrow",
        quick=True,
    ),
    beside(
        "pytorch/torchtitan#1506",
        "a router's bias that moves by the tokens of all 3 ranks, beside one process",
        "no bug",
        OneMicro(kind=Sparse),
        OneMicro(kind=Sparse),
        HEALTHY,
        "built_balanced",
    ),
    beside(
        "pytorch/torchtitan#1114",
        "the same by each rank's own tokens",
        "bug: the router's bias differs between ranks",
        OneMicro(kind=Sparse, shared=False),
        OneMicro(kind=Sparse),
        verdict("bug", words=("routed.bias", "buffer"), must_say=True),
        "built_balanced",
    ),
    beside(
        "huggingface/transformers#29496",
        "rotary frequencies are cast to BF16 with the model, and computed with in FP32",
        "the frequencies, as a format or a bug",
        Rotates(cast=True),
        Rotates(),
        verdict("bug", "precision_policy", words=("inv_freq", "rotary"), must_say=True),
        "built_rotary",
        ranks=1,
    ),
    beside(
        "EleutherAI/gpt-neox#1016",
        "positions beyond 256 are counted in BF16, in which neighbours are equal",
        "the rotary positions, as a format or a bug",
        Rotates(narrow=True, length=300),
        Rotates(length=300),
        verdict("bug", "precision_policy", words=("rotary",), must_say=True),
        "built_rotary",
        ranks=1,
    ),
]
