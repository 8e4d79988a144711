"""Runs whose experts lie on one rank each: gradients of experts and routers, losses of routers, dropped tokens."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from numerics import watch
from tests.numerics.local.outsiders import Sent
from tests.reports.report import Report
from tests.reports.trained import STEPS, WIDTH, WORDS, Trainer
from tests.reports.wrong import HEALTHY, seen, verdict

EXPERTS, ROOM = 3, 4


class Expert(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.down(functional.relu(self.up(x)))
        return made


class Routed(nn.Module):
    """The best expert of each token; `room` is the most tokens that an expert gets of one batch, `spread` the ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleDict({str(number): Expert() for number in range(EXPERTS)})
        self.room, self.spread = 10**6, False

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flat = x.flatten(0, 1)
        scores = self.gate(flat)
        weight, chosen = scores.softmax(-1).max(-1)
        kept = torch.cat([(chosen == number).nonzero()[: self.room, 0] for number in range(EXPERTS)])
        counts = torch.bincount(chosen[kept], minlength=EXPERTS).tolist()
        if self.spread:
            every = [torch.zeros(EXPERTS, dtype=torch.long) for _ in range(EXPERTS)]
            dist.all_gather(every, torch.tensor(counts))
            got = torch.stack(every)[:, dist.get_rank()].tolist()
            expert = next(iter(self.experts.values()))
            made = Sent.apply(expert(Sent.apply(flat[kept], (counts, got), "")), (got, counts), "")
        else:
            parts = flat[kept].split(counts)
            made = torch.cat([self.experts[str(n)](part) for n, part in enumerate(parts)])
        out = torch.zeros_like(flat).index_copy(0, kept, made)
        return (out * weight[:, None]).view(x.shape), scores.logsumexp(-1).square().mean()


class Sparse(nn.Module):
    """A model with one layer of experts, which leaves the router's loss beside its logits."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.routed = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH), Routed()
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.words(ids)
        made, beside = self.routed(self.norm(x))
        return self.head(x + made), beside


def built_sparse() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model with all experts, and its optimizer."""
    torch.manual_seed(12)
    model = Sparse()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def built_small() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same, with room for four tokens of a micro-batch in each expert."""
    model, optimizer = built_sparse()
    model.routed.room = ROOM  # type: ignore[union-attr, assignment]
    return model, optimizer


@dataclass(frozen=True)
class Experts(Trainer):
    """Data parallelism over the ranks of the experts; `wrong` names what is done otherwise."""

    wrong: str = ""
    room: int = 10**6

    def train(self, rank: int, world: int, out: Path) -> None:
        made, optimizer = built_sparse()
        model: Any = made
        model.routed.room = self.room
        own: set[nn.Parameter] = set()
        if world > 1:
            model.routed.spread = True
            for number in set(range(EXPERTS)) - {rank}:
                del model.routed.experts[str(number)]
            own = set(model.routed.experts.parameters())
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        watcher = watch(
            model,
            optimizer,
            micro_batches=self.micro,
            dp=(rank, world),
            coords={"dp": rank},
            out=out,
            level="tensors",
        )
        for step in range(STEPS):
            for ids, labels in self.batches(step, rank, world):
                logits, beside = model(ids)
                loss = functional.cross_entropy(logits.flatten(0, 1), labels.flatten()) / self.micro
                (loss + self.of_router(beside)).backward()
            for name, parameter in model.named_parameters() if world > 1 else ():
                self.reduced(name, parameter, parameter in own, world)
            optimizer.step()
            optimizer.zero_grad()
        watcher.close()

    def of_router(self, beside: torch.Tensor) -> torch.Tensor:
        """What the router's loss adds."""
        if self.wrong == "lost":
            return 0.1 * beside.detach()
        return 0.1 * beside / (1 if self.wrong == "undivided" else self.micro)

    def reduced(self, name: str, parameter: nn.Parameter, own: bool, world: int) -> None:
        """The reduction of a gradient over the ranks."""
        assert parameter.grad is not None
        if own:
            parameter.grad /= 1 if self.wrong == "experts" else world
        elif not (self.wrong == "router" and name == "routed.gate.weight"):
            dist.all_reduce(parameter.grad)
            parameter.grad /= world


REPORTS: list[Report] = [
    seen(
        "databricks/megablocks#86",
        "3 experts on one rank each, their gradients divided by the number of ranks, beside one process",
        "no bug",
        Experts(),
        Experts(),
        HEALTHY,
        model="built_sparse",
        file=__file__,
    ),
    seen(
        "deepspeedai/DeepSpeed#5259",
        "the same without that division",
        "bug: gradients of experts",
        Experts(wrong="experts"),
        Experts(),
        verdict("bug", words=("routed.experts",)),
        model="built_sparse",
        file=__file__,
    ),
    seen(
        "huggingface/transformers#48687",
        "the router's gradient is not reduced over the ranks of the experts",
        "bug: the router's gradient",
        Experts(wrong="router"),
        Experts(),
        verdict("bug", words=("routed.gate.weight",)),
        model="built_sparse",
        file=__file__,
    ),
    seen(
        "NVIDIA-NeMo/Automodel#3359",
        "the router's loss is added in each of two micro-batches undivided, beside one micro-batch",
        "bug: the router's loss counts twice",
        Experts(wrong="undivided"),
        Experts(micro=1),
        verdict("bug", words=("as many as micro-batches",)),
        model="built_sparse",
        file=__file__,
    ),
    seen(
        "NVIDIA-NeMo/Automodel#1412",
        "the router's loss sends no gradient back",
        "bug: the router's loss does not count",
        Experts(wrong="lost"),
        Experts(),
        verdict("bug", words=("not in the run's",)),
        model="built_sparse",
        file=__file__,
    ),
]
