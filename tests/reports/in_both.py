"""Runs over data and context parallelism: each rank steps its share of all weights, cut over the product of both."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from numerics import Placed, watch
from numerics.record.placement import boxes_of
from tests.numerics.local.context_trainers import turned
from tests.reports.report import Answer, Report
from tests.reports.trained import IGNORED, STEPS, WIDTH, WORDS, Trainer
from tests.reports.wrong import HEALTHY, seen, verdict

LENGTH, SEQUENCES, MICRO, DP, CP = 12, 8, 2, 2, 3
CHUNKS = torch.arange(LENGTH).chunk(2 * CP)
HELD = [torch.cat([CHUNKS[c], CHUNKS[2 * CP - 1 - c]]) for c in range(CP)]


class Gathered(torch.autograd.Function):
    """All context ranks' pieces along dimension 1 in the order of ranks; back, the sum of gradients of the own one."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        pieces = [torch.empty_like(x) for _ in range(CP)]
        dist.all_gather(pieces, x.contiguous(), group=group)
        return torch.cat(pieces, 1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad.chunk(CP, 1)[dist.get_rank(ctx.group)].contiguous(), None


class Decoder(nn.Module):
    """A layer of causal attention with rotary positions; `own` are the positions of this rank, `among` its group."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDTH), nn.RMSNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, WORDS)
        self.own, self.among = torch.arange(LENGTH), None

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        q, k, every = turned(q, self.own), turned(k, self.own), self.own
        if self.among is not None:
            k, v, every = Gathered.apply(k, self.among), Gathered.apply(v, self.among), torch.cat(HELD)
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.own[:, None] >= every)
        logits: torch.Tensor = self.head(x + self.out(mixed))
        return logits


def built_turned() -> tuple[Decoder, torch.optim.Optimizer]:
    """The model and its optimizer."""
    torch.manual_seed(6)
    model = Decoder()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def given(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A step's sequences and labels, (SEQUENCES, LENGTH); prompts of several lengths are ignored."""
    generator = torch.Generator().manual_seed(40 + step)
    ids, labels = torch.randint(1, WORDS, (2, SEQUENCES, LENGTH), generator=generator)
    prompts = torch.randint(1, 7, (SEQUENCES,), generator=generator)
    labels[torch.arange(LENGTH) < prompts[:, None]] = IGNORED
    return ids, labels


class Shares:
    """The share of a rank in all weights put end to end, its optimizer, and how it is reduced and gathered."""

    def __init__(self, model: nn.Module, rank: int, world: int) -> None:
        self.weights, self.rank, self.world = list(model.parameters()), rank, world
        flat = torch.cat([w.detach().reshape(-1) for w in self.weights])
        self.size = -(-len(flat) // world)
        self.padding = flat.new_zeros(self.size * world - len(flat))
        self.share = nn.Parameter(torch.cat([flat, self.padding]).chunk(world)[rank].clone())
        self.optimizer = torch.optim.AdamW([self.share], lr=0.01)

    def reduce(self, divisor: float, group: Any) -> None:
        """Sum all gradients over a group, and keep the own share over a divisor."""
        flat = torch.cat(
            [(torch.zeros_like(w) if w.grad is None else w.grad).reshape(-1) for w in self.weights]
        )
        flat = torch.cat([flat, self.padding])
        dist.all_reduce(flat, group=group)
        self.share.grad = flat.chunk(self.world)[self.rank] / divisor

    def clip(self, limit: float, group: Any) -> None:
        """Clip by the norm of the shares of a group."""
        assert self.share.grad is not None
        square = self.share.grad.square().sum()
        dist.all_reduce(square, group=group)
        self.share.grad *= (limit / square.sqrt()).clamp(max=1.0)

    @torch.no_grad()
    def step(self) -> None:
        """Step the own share, and gather those of all ranks."""
        self.optimizer.step()
        parts = [torch.empty(self.size) for _ in range(self.world)]
        dist.all_gather(parts, self.share.detach())
        at, flat = 0, torch.cat(parts)
        for weight in self.weights:
            weight.copy_(flat[at : at + weight.numel()].view_as(weight))
            weight.grad, at = None, at + weight.numel()


@dataclass(frozen=True)
class InBoth(Trainer):
    """Two replicas of three context ranks; `wrong` names what goes wrong, `clips` limits the norm of all gradients."""

    wrong: str = ""
    clips: float = 0.0
    means: bool = False

    def train(self, rank: int, world: int, out: Path) -> None:
        model, optimizer = built_turned()
        replica, piece, replicas, shares = 0, 0, 1, None
        peers: Any = None
        if world > 1:
            replica, piece, replicas, shares = rank // CP, rank % CP, DP, Shares(model, rank, world)
            ranks = torch.arange(world).view(DP, CP)
            inner = [dist.new_group(row) for row in ranks.tolist()]
            peers = [dist.new_group(column) for column in ranks.T.tolist()][piece]
            model.own, model.among = HELD[piece], inner[replica]
        watcher = watch(
            model,
            optimizer if shares is None else shares.optimizer,
            micro_batches=MICRO,
            dp=(replica, replicas),
            coords={"dp": replica, "cp": piece},
            place=placing(piece) if world > 1 else None,
            out=out,
            level="tensors",
        )
        for step in range(STEPS):
            ids, labels = (part.chunk(replicas)[replica] for part in given(step))
            every = int((given(step)[1] != IGNORED).sum())
            for words, wanted in zip(ids.chunk(MICRO), labels.chunk(MICRO), strict=True):
                own = wanted[:, model.own].flatten()
                logits = model(words[:, model.own]).flatten(0, 1)
                total = functional.cross_entropy(logits, own, ignore_index=IGNORED, reduction="sum")
                count = (
                    MICRO * max(int((own != IGNORED).sum()), 1) if self.wrong == "means" else every / world
                )
                (total / count).backward()
            self.update(model, optimizer, shares, peers)
        watcher.close()

    def update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, shares: Shares | None, peers: Any
    ) -> None:
        """Reduce and step."""
        if shares is None:
            if self.clips:
                nn.utils.clip_grad_norm_(model.parameters(), self.clips)
            optimizer.step()
            optimizer.zero_grad()
            return
        shares.reduce(DP if self.wrong == "dp" else DP * CP, peers if self.wrong == "over dp" else None)
        if self.clips:
            shares.clip(self.clips, peers if self.wrong == "norm over dp" else None)
        shares.step()


def placing(piece: int) -> Callable[[str, torch.Tensor], Placed | None]:
    """What `watch(place=...)` gets from a rank that holds two chunks of each sequence."""

    def place(_name: str, value: torch.Tensor) -> Placed | None:
        if value.dim() < 2 or value.shape[1] != len(HELD[piece]):
            return None
        shape = (len(value), LENGTH, *value.shape[2:])
        kept = [torch.arange(size) for size in shape]
        return Placed(value, shape, boxes_of([kept[0], HELD[piece], *kept[2:]]))

    return place


def both(
    source: str,
    input_: str,
    expected: str,
    trainer: Trainer,
    sound: Trainer,
    judge: Callable[[Answer], str],
    *,
    quick: bool = False,
) -> Report:
    """A report on six ranks beside one process."""
    model, ranks = "built_turned", DP * CP
    return seen(
        source, input_, expected, trainer, sound, judge, model=model, file=__file__, ranks=ranks, quick=quick
    )


SOUND, CLIPPED = InBoth(), InBoth(clips=0.2)
REPORTS: list[Report] = [
    both(
        "pytorch/torchtitan#1132",
        "dp 2 and cp 3; each rank steps its share of all weights, cut over the six ranks, and gradients are averaged",
        "no bug",
        SOUND,
        SOUND,
        HEALTHY,
    ),
    both(
        "NVIDIA/Megatron-LM#673",
        "the same, and the sum over six ranks is divided by dp alone",
        "bug: gradients are 3 times the baseline's",
        InBoth(wrong="dp"),
        SOUND,
        verdict("bug", words=("'axis': 'cp'",)),
    ),
    both(
        "huggingface/accelerate#3604",
        "the same, and shares are reduced over dp alone",
        "bug: gradients lack the other pieces, cp",
        InBoth(wrong="over dp"),
        SOUND,
        verdict("bug", words=("not summed over cp",)),
        quick=True,
    ),
    both(
        "PrimeIntellect-ai/prime-rl#2562",
        "the same, and each rank divides by its own tokens",
        "bug: a mean of means",
        InBoth(wrong="means"),
        SOUND,
        verdict("bug", words=("mean of the means", "times as much")),
    ),
    both(
        "facebookresearch/fairscale#167",
        "gradients are clipped by the norm of all shares",
        "no bug",
        CLIPPED,
        CLIPPED,
        HEALTHY,
    ),
    both(
        "NVIDIA/Megatron-LM#5916",
        "the same, and the norm is that of the shares of one replica's piece alone",
        "bug: a factor of each rank's own",
        InBoth(clips=0.2, wrong="norm over dp"),
        CLIPPED,
        verdict("bug", words=("factor",)),
    ),
]
