"""Runs with pipeline parallelism by hand: micro-batches, tied embeddings, clipping and shares over three stages."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from numerics import Watcher, watch
from tests.reports.report import Answer, Report
from tests.reports.trained import LENGTH, STEPS, WIDTH, Trainer
from tests.reports.wrong import HEALTHY, SOUND, seen, verdict

STAGES = 3
Group = dist.ProcessGroup | None
Batch = tuple[torch.Tensor, torch.Tensor]
"""Words and labels of a micro-batch."""


class Stage(nn.Module):
    """A third of the decoder, with the names of the whole; a tied head is a copy on the last stage."""

    def __init__(self, whole: nn.Module, stage: int) -> None:
        super().__init__()
        self.words = whole.words if stage == 0 else None
        self.blocks = nn.ModuleDict({} if stage == 2 else {str(stage): whole.blocks[stage]})
        self.norm, self.head = (whole.norm, whole.head) if stage == 2 else (None, None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x if self.words is None else self.words(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(self.norm(x))


@dataclass(frozen=True)
class InStages(Trainer):
    """Three stages of `replicas` pipelines: all micro-batches forth, then all back; `wrong` names what goes wrong."""

    replicas: int = 1
    clips: float = 0.0
    wrong: str = ""

    def train(self, rank: int, world: int, out: Path) -> None:
        model, optimizer = self.model()
        stage, replica = divmod(rank, self.replicas) if world > 1 else (0, 0)
        ends = self.ends() if world > 1 else None
        over = self.alike() if world > 1 else None
        if world > 1:
            model = Stage(model, stage)
            if self.tied and stage == STAGES - 1:
                copied = model.head.weight.detach().clone()
                model.head.weight = nn.Parameter(copied * (1.1 if self.wrong == "own copy" else 1.0))
            optimizer = self.stepping(model)
        watcher = watch(
            model,
            optimizer,
            micro_batches=self.micro,
            dp=(replica, self.replicas) if world > 1 else (0, 1),
            coords={"pp": stage, "dp": replica},
            out=out,
            level="tensors",
        )
        for step in range(STEPS):
            batches = self.batches(step, replica, self.replicas if world > 1 else 1)
            if world == 1:
                for ids, labels in batches:
                    logits = model(ids)
                    watcher.targets(labels)
                    self.loss(logits, labels, step).backward()
            else:
                self.schedule(model, watcher, batches, stage, step)
                self.reduce(model, optimizer, stage, ends, over)
            self.clip(model, world)
            optimizer.step()
            if not (self.wrong == "keeps" and stage == 1):
                optimizer.zero_grad()
                model.zero_grad()
            self.gather(model, optimizer, over)
        watcher.close()

    def ends(self) -> dist.ProcessGroup | None:
        """The group of the first and the last stage of this rank's pipeline."""
        found = None
        for replica in range(self.replicas):
            ranks = [replica, (STAGES - 1) * self.replicas + replica]
            group = dist.new_group(ranks)
            found = group if dist.get_rank() in ranks else found
        return found

    def alike(self) -> dist.ProcessGroup | None:
        """The group of the ranks that hold this rank's stage."""
        found = None
        for stage in range(STAGES):
            ranks = [stage * self.replicas + replica for replica in range(self.replicas)]
            group = dist.new_group(ranks)
            found = group if dist.get_rank() in ranks else found
        return found

    def stepping(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of a stage."""
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def schedule(
        self, model: Stage, watcher: Watcher, batches: Sequence[Batch], stage: int, step: int
    ) -> None:
        """Run all micro-batches forth, then back."""
        rank, first, last = dist.get_rank(), stage == 0, stage == STAGES - 1
        kept = []
        for ids, labels in batches:
            x = ids
            if not first:
                x = torch.empty(len(ids), LENGTH - 1, WIDTH)
                dist.recv(x, rank - self.replicas)
                x.requires_grad_()
            made = model(x)
            if last:
                watcher.targets(labels)
                made = self.loss(made, labels, step)
            else:
                dist.send(made.detach().contiguous(), rank + self.replicas)
            kept.append((x, made))
        for number, (x, made) in enumerate(kept):
            if self.wrong == "wiped" and number == self.micro - 1:
                model.zero_grad()
            grad = None
            if not last:
                grad = torch.empty_like(made)
                dist.recv(grad, rank + self.replicas)
                grad = grad / self.micro if self.wrong == "each divides" else grad
            made.backward(grad)
            if not first:
                dist.send(x.grad.contiguous(), rank - self.replicas)
            if self.wrong == "scales" and number % 2:
                for weight in model.parameters():
                    weight.grad /= 2

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        loss = super().loss(logits, labels, step)
        if self.wrong == "scales":
            return loss * 2
        return loss / self.micro if self.wrong == "twice" else loss

    def reduce(
        self, model: Stage, optimizer: torch.optim.Optimizer, stage: int, ends: Group, over: Group
    ) -> None:
        """Average gradients over replicas, and sum those of tied embeddings over stages."""
        for weight in model.parameters():
            dist.all_reduce(weight.grad, group=over)
            weight.grad /= self.replicas
        if self.tied and stage != 1 and self.wrong != "not summed":
            dist.all_reduce(tied_weight(model).grad, group=ends)

    def gather(self, model: nn.Module, optimizer: torch.optim.Optimizer, over: dist.ProcessGroup) -> None:
        """Nothing: each rank steps all of its stage."""

    def clip(self, model: nn.Module, world: int) -> None:
        """Clip by the norm of all gradients, or of this stage's."""
        if not self.clips:
            return
        square = torch.stack([w.grad.square().sum() for w in model.parameters()]).sum()
        if world > 1 and self.wrong != "own norm":
            dist.all_reduce(square)
        factor = (self.clips / square.sqrt()).clamp(max=1.0)
        for weight in model.parameters():
            weight.grad *= factor


def tied_weight(model: nn.Module) -> nn.Parameter:
    """The copy of the embedding on the first or the last stage."""
    return model.words.weight if model.words is not None else model.head.weight


@dataclass(frozen=True)
class Shared(InStages):
    """Each replica steps its share of one flat copy of its stage's weights, which is then gathered.

    Gradients are reduced into the shares; where `wrong` says "late", those of tied embeddings are summed behind that.
    """

    tied: bool = True
    replicas: int = 2

    def stepping(self, model: nn.Module) -> torch.optim.Optimizer:
        part = self.share([w.detach() for w in model.parameters()]).clone()
        return torch.optim.AdamW([nn.Parameter(part)], lr=0.01)

    def share(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """This replica's share of tensors put end to end."""
        flat = torch.cat([one.flatten() for one in tensors])
        flat = nn.functional.pad(flat, (0, -len(flat) % self.replicas))
        return flat.chunk(self.replicas)[dist.get_rank() % self.replicas]

    def reduce(
        self, model: Stage, optimizer: torch.optim.Optimizer, stage: int, ends: Group, over: Group
    ) -> None:
        if self.wrong != "late" and stage != 1:
            dist.all_reduce(tied_weight(model).grad, group=ends)
        weights = list(model.parameters())
        own = torch.cat([w.grad.flatten() for w in weights])
        whole = own.clone()
        dist.all_reduce(whole, group=over)
        size = -(-len(own) // self.replicas)
        begin = size * (dist.get_rank() % self.replicas)
        own[begin : begin + size] = whole[begin : begin + size] / self.replicas
        for weight, part in zip(weights, own.split([w.numel() for w in weights]), strict=True):
            weight.grad.copy_(part.view_as(weight))
        if self.wrong == "late" and stage != 1:
            dist.all_reduce(tied_weight(model).grad, group=ends)
        optimizer.param_groups[0]["params"][0].grad = self.share([w.grad for w in weights]).clone()

    @torch.no_grad()
    def gather(self, model: nn.Module, optimizer: torch.optim.Optimizer, over: dist.ProcessGroup) -> None:
        if not dist.is_initialized():
            return
        part = optimizer.param_groups[0]["params"][0].detach()
        parts = [torch.empty_like(part) for _ in range(self.replicas)]
        dist.all_gather(parts, part, group=over)
        weights = list(model.parameters())
        sizes = [w.numel() for w in weights]
        for weight, new in zip(weights, torch.cat(parts)[: sum(sizes)].split(sizes), strict=True):
            weight.copy_(new.view_as(weight))


def _tied(
    source: str,
    input_: str,
    expected: str,
    trainer: Trainer,
    judge: Callable[[Answer], str],
    **more: bool | int,
) -> Report:
    return seen(source, input_, expected, trainer, Trainer(tied=True), judge, model="built_tied", **more)


CLIPPED = InStages(clips=0.3)
REPORTS: list[Report] = [
    seen(
        "pytorch/pytorch#55036",
        "a pipeline of 3 stages beside one process",
        "no bug",
        InStages(),
        SOUND,
        HEALTHY,
    ),
    _tied(
        "NVIDIA/Megatron-LM#299",
        "the same with tied embeddings: the ends of the pipeline hold copies and sum their gradients",
        "no bug",
        InStages(tied=True),
        HEALTHY,
    ),
    _tied(
        "uw-syfi/piper#13",
        "the same without that sum",
        "bug: the embedding's gradient, pp",
        InStages(tied=True, wrong="not summed"),
        verdict("bug", words=("'axis': 'pp'",)),
    ),
    _tied(
        "NVIDIA-NeMo/Megatron-Bridge#957",
        "the copy on the last stage begins with other values",
        "bug: the copy of the embedding's weight",
        InStages(tied=True, wrong="own copy"),
        verdict("bug", words=("unequal copies",)),
        quick=True,
    ),
    _tied(
        "NVIDIA/Megatron-LM#6500",
        "two such pipelines; each replica steps its share of a flat copy of its stage's weights, which is gathered",
        "no bug",
        Shared(),
        HEALTHY,
        ranks=6,
        quick=True,
    ),
    _tied(
        "NVIDIA/Megatron-LM#844",
        "the same, and the embeddings' gradients are summed behind the reduction into shares",
        "bug: the embedding's gradient",
        Shared(wrong="late"),
        verdict("bug", words=("words.weight.grad", "head.weight.grad")),
        ranks=6,
    ),
    seen(
        "NVIDIA-NeMo/Automodel#3530",
        "gradients are cleared before the last micro-batch's backward",
        "bug: gradients of the last micro-batch alone",
        InStages(wrong="wiped"),
        SOUND,
        verdict("bug", words=("micro-batch 1 alone",)),
    ),
    seen(
        "pytorch/torchtitan#1733",
        "two rounds of two micro-batches; behind each one all gradients so far are halved",
        "bug: gradients are not the sum of the micro-batches",
        InStages(micro=4, wrong="scales"),
        Trainer(micro=4),
        verdict("bug", words=("is not the sum",)),
    ),
    seen(
        "deepspeedai/DeepSpeed#8154",
        "each stage divides the gradient that it receives by the number of micro-batches",
        "bug: the gradient that the second stage gets, half of the right one",
        InStages(wrong="each divides"),
        SOUND,
        verdict("bug", words=("0.5 times",)),
    ),
    seen(
        "areal-project/AReaL#1273",
        "the loss is divided by the number of micro-batches twice",
        "bug: gradients are half of the baseline's, by the micro-batches",
        InStages(wrong="twice"),
        SOUND,
        verdict("bug", words=("number of micro-batches once more",)),
    ),
    seen(
        "pytorch/torchtitan#649",
        "gradients are clipped by the norm over all stages",
        "no bug",
        CLIPPED,
        CLIPPED,
        HEALTHY,
    ),
    seen(
        "pytorch/torchtitan#596",
        "each stage clips its gradients by its own norm",
        "bug: factors of stages, pp",
        InStages(clips=0.3, wrong="own norm"),
        CLIPPED,
        verdict("bug", words=("'axis': 'pp'",)),
    ),
    seen(
        "deepspeedai/DeepSpeed#856",
        "the second stage never clears its gradients",
        "bug: gradients of the step before",
        InStages(wrong="keeps"),
        SOUND,
        verdict("bug", words=("were not cleared",)),
        quick=True,
    ),
]
