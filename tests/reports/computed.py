"""Runs whose blocks are recomputed, whose documents are packed, or whose labels and clips are others' than intended."""

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.reports.report import Report
from tests.reports.trained import LENGTH, Block, Decoder, Trainer
from tests.reports.wrong import HEALTHY, SOUND, seen, verdict

NORM = 0.5


class Dropping(Block):
    """A block with dropout in its middle."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(functional.dropout(x, 0.2, self.training))


class Recomputed(Decoder):
    """Blocks with dropout that are recomputed in the backward; `keeps` restores the random numbers for it."""

    keeps, recomputes = True, True

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Dropping(), Dropping()])

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            if self.recomputes:
                x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=self.keeps)
            else:
                x = block(x)
        return self.head(self.norm(x))


def built_recomputed() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model with recomputed blocks."""
    torch.manual_seed(3)
    model = Recomputed()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


@dataclass(frozen=True)
class Recomputes(Trainer):
    """Trains it."""

    keeps: bool = True
    recomputes: bool = True

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = built_recomputed()
        model.keeps, model.recomputes = self.keeps, self.recomputes
        return model, optimizer


class Packed(Decoder):
    """A decoder that is given which document each position belongs to; `mixes` attends across them."""

    mixes = False

    def forward(self, ids: torch.Tensor, documents: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        mask = causal if self.mixes else causal & (documents[:, :, None] == documents[:, None])
        for block in self.blocks:
            q, k, v = block.qkv(block.norm(x)).chunk(3, -1)
            x = x + block.out(functional.scaled_dot_product_attention(q, k, v, attn_mask=mask))
            x = x + block.down(functional.gelu(block.up(block.mlp_norm(x))))
        return self.head(self.norm(x))


def built_packed() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model of packed documents."""
    torch.manual_seed(3)
    model = Packed()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


@dataclass(frozen=True)
class Packs(Trainer):
    """Trains it; the second document begins in the middle of a sequence."""

    mixes: bool = False

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = built_packed()
        model.mixes = self.mixes
        return model, optimizer

    def forward(self, wrapped: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        documents = (torch.arange(ids.shape[1]) >= LENGTH // 2).long().expand(len(ids), -1)
        return wrapped(ids, documents.contiguous())


class ShiftsTwice(Trainer):
    """Labels are shifted by the data and once more by the loss: each position learns the word after the next."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        return super().loss(logits[:, :-1], labels[:, 1:], step)


class OtherLabels(Trainer):
    """The loss of a micro-batch reads the labels of the one after it."""

    def batches(self, step: int, rank: int, world: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        made = super().batches(step, rank, world)
        return [(ids, made[(number + 1) % len(made)][1]) for number, (ids, _) in enumerate(made)]


@dataclass(frozen=True)
class Clips(Trainer):
    """Gradients are clipped by their norm; `again` adds up the squares of gradients that are reduced already."""

    again: bool = False

    def before_update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        grads = [p.grad for p in model.parameters() if p.grad is not None]
        total = torch.stack([grad.square().sum() for grad in grads]).sum()
        if self.again:
            dist.all_reduce(total)
        for grad in grads:
            grad.mul_(min(1.0, NORM / float(total.sqrt())))


class NeverShuffled(Trainer):
    """Each epoch (two steps) reads the first one's sequences in the same order."""

    def batches(self, step: int, rank: int, world: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return super().batches(step % 2, rank, world)


class KeepsAverages(Trainer):
    """Averaged weights are put in for an evaluation behind step 0 and stay."""

    def after_update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, world: int
    ) -> torch.optim.Optimizer:
        if step == 0:
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(0.95)
        return optimizer


class OneWeight(Trainer):
    """The fused loss multiplies the gradients of all positions by the first position's weight."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        weight = self.weights(labels)
        weight = weight if type(self) is not OneWeight else weight[:1].expand(len(weight))
        each = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
        return (each * weight).mean() / self.micro

    def weights(self, labels: torch.Tensor) -> torch.Tensor:
        """A weight for each position, by its word."""
        return 1 + labels.flatten() % 3


class EachWeight(OneWeight):
    """Each position has its own weight."""


REPORTS: list[Report] = [
    seen(
        "openai/guided-diffusion#167",
        "blocks with dropout that are recomputed with the same random numbers, beside blocks that are not",
        "no bug",
        Recomputes(),
        Recomputes(recomputes=False),
        HEALTHY,
        ranks=1,
        model="built_recomputed",
        file=__file__,
    ),
    seen(
        "allenai/OLMo-core#828",
        "the same without restoring them: the backward drops other values than the forward",
        "bug: what is recomputed, or open with dropout named",
        Recomputes(keeps=False),
        Recomputes(recomputes=False),
        verdict("bug", words=("blocks.0", "recomput", "dropout", "random")),
        ranks=1,
        model="built_recomputed",
        file=__file__,
    ),
    seen(
        "mosaicml/llm-foundry#1464",
        "packed documents that attend to themselves alone, on 3 ranks and on one",
        "no bug",
        Packs(),
        Packs(),
        HEALTHY,
        model="built_packed",
        file=__file__,
    ),
    seen(
        "huggingface/nanoVLM#204",
        "the same, and positions attend to the document before",
        "bug: the outputs of attention",
        Packs(mixes=True),
        Packs(),
        verdict("bug", words=("blocks.0",)),
        model="built_packed",
        file=__file__,
    ),
    seen(
        "huggingface/transformers#47394",
        "labels are shifted a second time in the loss",
        "bug: the loss",
        ShiftsTwice(),
        SOUND,
        verdict("bug", words=("loss", "positions count")),
    ),
    seen(
        "deepspeedai/DeepSpeed#5729",
        "the loss of a micro-batch reads the labels of the next one",
        "bug: the loss",
        OtherLabels(),
        SOUND,
        verdict("bug", words=("the losses differ", "labels")),
    ),
    seen(
        "meta-pytorch/torchtune#2420",
        "gradients are clipped by the norm of the reduced ones, on 3 ranks and on one",
        "no bug",
        Clips(),
        Clips(),
        HEALTHY,
    ),
    seen(
        "modelscope/twinkle#290",
        "the same, and the squares of reduced gradients are added up over ranks once more",
        "bug: gradients are too small, by the root of the number of ranks",
        Clips(again=True),
        Clips(),
        verdict("bug", words=("0.577",)),
    ),
    seen(
        "pytorch/pytorch#31771",
        "the second epoch reads the first one's sequences in the same order, in the baseline other ones",
        "bug: other sequences from the second epoch on",
        NeverShuffled(),
        SOUND,
        verdict("bug", words=("sequences of in.0 in step 2",)),
    ),
    seen(
        "PKU-YuanGroup/Open-Sora-Plan#186",
        "averaged weights are put in for an evaluation and stay",
        "bug: weights that are not what the optimizer left",
        KeepsAverages(),
        SOUND,
        verdict("bug", words=("not what the optimiser left",)),
    ),
    seen(
        "linkedin/Liger-Kernel#1298",
        "a fused loss multiplies all gradients by the first position's weight",
        "bug: positions count otherwise",
        OneWeight(),
        EachWeight(),
        verdict("bug", words=("position", "losses differ")),
    ),
]
