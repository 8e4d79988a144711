"""Runs with context parallelism over packed documents: masks, orders of keys, positions and divisors over pieces."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from tests.numerics.local.context_trainers import LENGTH, SEQUENCES, WIDE, WORDS, Gathered, turned
from tests.reports.pieces import MICRO, step_together, watched
from tests.reports.report import Answer, Report
from tests.reports.trained import STEPS, Trainer
from tests.reports.wrong import HEALTHY, seen, verdict

PIECES = 3


class Decoder(nn.Module):
    """A layer of attention within documents, with rotary positions; `cut` are the positions that each rank holds."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(WORDS, WIDE), nn.RMSNorm(WIDE)
        self.qkv, self.out = nn.Linear(WIDE, 3 * WIDE, bias=False), nn.Linear(WIDE, WIDE, bias=False)
        self.head = nn.Linear(WIDE, WORDS)
        self.cut: list[list[int]] | None = None
        self.wrong = ""

    def forward(self, words: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        x = self.words(words)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        own = every = torch.arange(LENGTH)
        turns, among = torch.arange(words.shape[1]), documents
        if self.cut is not None:
            own = torch.tensor(self.cut[dist.get_rank()])
            every = torch.tensor([at for held in self.cut for at in held])
            among = Gathered.apply(documents[..., None].float(), self.cut)[..., 0].long()
            turns = turns if self.wrong == "positions" else own
        q, k = turned(q, turns), turned(k, turns)
        if self.cut is not None:
            k, v = Gathered.apply(k, self.cut), Gathered.apply(v, self.cut)
        if self.wrong == "order":
            every = torch.arange(LENGTH)
        mask = own[:, None] >= every
        if self.wrong != "causal":
            mask = mask & (documents[:, :, None] == among[:, None, :])
        return self.head(x + self.out(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)))


def build() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and its optimizer."""
    torch.manual_seed(5)
    model = Decoder()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def packed(step: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A step's words, numbers of documents, and labels, (SEQUENCES, LENGTH)."""
    generator = torch.Generator().manual_seed(30 + step)
    words, labels = torch.randint(0, WORDS, (2, SEQUENCES, LENGTH), generator=generator)
    starts = torch.rand(SEQUENCES, LENGTH, generator=generator) < 0.3
    return words, starts.cumsum(1), labels


@dataclass(frozen=True)
class Packed(Trainer):
    """Each rank holds two chunks of every sequence, as head and tail; `wrong` names what goes wrong."""

    wrong: str = ""

    def train(self, rank: int, world: int, out: Path) -> None:
        model, optimizer = build()
        model.wrong = self.wrong
        held, watcher = watched(model, optimizer, rank, world, out)
        for step in range(STEPS):
            for words, documents, labels in zip(*(part.chunk(MICRO) for part in packed(step)), strict=True):
                own = documents[:, held]
                if self.wrong == "documents":
                    own = (own.diff(dim=1, prepend=own[:, :1]) != 0).cumsum(1)
                logits = model(words[:, held], own)
                total = functional.cross_entropy(
                    logits.flatten(0, 1), labels[:, held].flatten(), reduction="sum"
                )
                (total * world / labels.numel() / MICRO).backward()
            step_together(model, optimizer, world, 1 if self.wrong == "divisor" else world)
        watcher.close()


def _seen(
    source: str, input_: str, expected: str, trainer: Trainer, judge: Callable[[Answer], str], **more: bool
) -> Report:
    return seen(source, input_, expected, trainer, Packed(), judge, model="build", file=__file__, **more)


REPORTS: list[Report] = [
    _seen(
        "swiss-ai/Megatron-LM#104",
        "packed documents, cut over 3 context ranks as head and tail, that attend to themselves alone",
        "no bug",
        Packed(),
        HEALTHY,
    ),
    _seen(
        "huggingface/trl#6843",
        "the same, and on pieces attention is causal without documents",
        "bug: attention",
        Packed(wrong="causal"),
        verdict("bug", words=("out.out",)),
    ),
    _seen(
        "PrimeIntellect-ai/prime-rl#2392",
        "the same, and each rank counts the documents of its piece from 0",
        "bug: the numbers of documents, beside the same words",
        Packed(wrong="documents"),
        verdict("bug", words=("made otherwise",)),
    ),
    _seen(
        "feifeibear/long-context-attention#53",
        "the same, and gathered keys are taken to be in the order of positions",
        "bug: attention",
        Packed(wrong="order"),
        verdict("bug", words=("out.out",)),
    ),
    _seen(
        "NVIDIA/Megatron-LM#1612",
        "the same, and rotary positions count from 0 on each piece",
        "bug: positions that are local to each rank",
        Packed(wrong="positions"),
        verdict("bug", words=("local to each rank",)),
    ),
    _seen(
        "NVIDIA/Megatron-LM#906",
        "the loss is multiplied by the context ranks, and gradients are not divided by them",
        "bug: gradients are 3 times the baseline's",
        Packed(wrong="divisor"),
        verdict("bug", words=("3 times the baseline's",)),
    ),
]
