"""Runs whose experts have replicas: reductions of their gradients, the router's attached loss, its format, its tp."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from numerics import watch
from tests.reports.experts import EXPERTS, Expert
from tests.reports.report import Answer, Report
from tests.reports.trained import STEPS, WIDTH, WORDS, Trainer
from tests.reports.wrong import HEALTHY, seen, verdict

BALANCE = 0.2


class Attached(torch.autograd.Function):
    """Scores forth; back, the gradient of the router's own loss starts from `scale`, beside that of the scores."""

    @staticmethod
    def forward(ctx: Any, scores: torch.Tensor, loss: torch.Tensor, scale: float) -> torch.Tensor:
        ctx.scale = scale
        ctx.save_for_backward(loss)
        return scores

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        (loss,) = ctx.saved_tensors
        return grad, torch.full_like(loss, ctx.scale), None


class Among(torch.autograd.Function):
    """Rows sent to the ranks of a group, and their gradients sent back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sent: list[int], got: list[int], group: Any) -> torch.Tensor:
        ctx.sizes, ctx.group = (sent, got), group
        out = x.new_empty(sum(got), x.shape[1])
        dist.all_to_all_single(out, x.contiguous(), got, sent, group=group)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        sent, got = ctx.sizes
        out = grad.new_empty(sum(sent), grad.shape[1])
        dist.all_to_all_single(out, grad.contiguous(), sent, got, group=ctx.group)
        return out, None, None, None


class Routed(nn.Module):
    """The best expert of each token; the router's loss is attached to its scores, and `scale` is what it counts.

    `among` are the ranks of the experts (None: all are here), `narrow` lets the router compute in BF16.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleDict({str(number): Expert() for number in range(EXPERTS)})
        self.scale, self.among, self.narrow = BALANCE / 2, None, False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(0, 1)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.narrow):
            scores = self.gate(flat).float()
        balance = scores.softmax(-1).mean(0).square().sum() * EXPERTS
        scores = Attached.apply(scores, balance, self.scale)
        weight, chosen = scores.softmax(-1).max(-1)
        by = chosen.argsort(stable=True)
        counts = torch.bincount(chosen, minlength=EXPERTS).tolist()
        if self.among is None:
            parts = flat[by].split(counts)
            made = torch.cat([self.experts[str(n)](part) for n, part in enumerate(parts)])
        else:
            every = [torch.zeros(EXPERTS, dtype=torch.long) for _ in range(EXPERTS)]
            dist.all_gather(every, torch.tensor(counts), group=self.among)
            got = torch.stack(every)[:, dist.get_rank(self.among)].tolist()
            (expert,) = self.experts.values()
            made = Among.apply(
                expert(Among.apply(flat[by], counts, got, self.among)), got, counts, self.among
            )
        out = torch.zeros_like(flat).index_copy(0, by, made)
        return (out * weight[:, None]).view(x.shape)


class Sparse(nn.Module):
    """A model with one layer of experts."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.routed = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH), Routed()
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        logits: torch.Tensor = self.head(x + self.routed(self.norm(x)))
        return logits


def built_routed() -> tuple[Sparse, torch.optim.Optimizer]:
    """The model with all experts, and its optimizer."""
    torch.manual_seed(12)
    model = Sparse()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


@dataclass(frozen=True)
class Replicated(Trainer):
    """Three experts on one rank each, and as many replicas of these ranks as fit; `wrong` names what goes wrong."""

    wrong: str = ""
    times: float = 1.0

    def train(self, rank: int, world: int, out: Path) -> None:
        model, optimizer = built_routed()
        model.routed.scale *= self.times
        model.routed.narrow = self.wrong == "narrow router"
        replicas = None
        own: set[nn.Parameter] = set()
        if world > 1:
            ranks = torch.arange(world).view(-1, EXPERTS)
            among = [dist.new_group(row) for row in ranks.tolist()]
            replicas = [dist.new_group(column) for column in ranks.T.tolist()][rank % EXPERTS]
            model.routed.among = among[rank // EXPERTS]
            for number in set(range(EXPERTS)) - {rank % EXPERTS}:
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
                logits = model(ids)
                (functional.cross_entropy(logits.flatten(0, 1), labels.flatten()) / self.micro).backward()
            for parameter in model.parameters() if world > 1 else ():
                self.reduced(parameter, parameter in own, world, replicas)
            optimizer.step()
            optimizer.zero_grad()
        watcher.close()

    def reduced(self, parameter: nn.Parameter, own: bool, world: int, replicas: Any) -> None:
        """The reduction of a gradient over the ranks that hold the parameter."""
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if not (own and self.wrong == "not reduced"):
            dist.all_reduce(parameter.grad, group=replicas if own and self.wrong != "over all" else None)
        divisor = world if not own or self.wrong != "own mean" else world // EXPERTS
        parameter.grad /= divisor


SOUND = Replicated()


def routed(
    source: str,
    input_: str,
    expected: str,
    trainer: Trainer,
    judge: Callable[[Answer], str],
    *,
    ranks: int = 6,
    quick: bool = False,
) -> Report:
    """A report on experts with replicas beside one process."""
    model = "built_routed"
    return seen(
        source, input_, expected, trainer, SOUND, judge, model=model, file=__file__, ranks=ranks, quick=quick
    )


REPORTS: list[Report] = [
    routed(
        "facebookresearch/fairseq#4220",
        "two replicas of 3 experts on one rank each; gradients of an expert are summed over its replicas",
        "no bug",
        SOUND,
        HEALTHY,
    ),
    routed(
        "NVIDIA/Megatron-LM#6080",
        "the same, and gradients of experts are summed over all ranks, which hold other experts",
        "bug: gradients of experts",
        Replicated(wrong="over all"),
        verdict("bug", words=("summed with the gradients of other parameters",)),
        quick=True,
    ),
    routed(
        "NVIDIA/Megatron-LM#5956",
        "the same, and gradients of experts are divided by the number of their replicas alone",
        "bug: gradients of experts are 3 times the right ones",
        Replicated(wrong="own mean"),
        verdict("bug", words=("routed.experts",)),
    ),
    routed(
        "pytorch/pytorch#160285",
        "the same, and gradients of experts are not summed over their replicas",
        "bug: gradients of experts",
        Replicated(wrong="not reduced"),
        verdict("bug", words=("not summed over dp",)),
    ),
    routed(
        "huggingface/transformers#48690",
        "the router's loss, attached to its scores, counts as many times as there are ranks",
        "bug: the gradient of the router's scores",
        Replicated(times=6),
        verdict("bug", words=("routed.gate",)),
    ),
    routed(
        "NVIDIA/Megatron-LM#2217",
        "the same loss counts a third, by the ranks of the experts",
        "bug: the gradient of the router's scores",
        Replicated(times=1 / 3),
        verdict("bug", words=("routed.gate",)),
    ),
    routed(
        "pytorch/torchtitan#2389",
        "the router's scores are computed in BF16",
        "a precision policy that differs: the router's scores, computed in bfloat16",
        Replicated(wrong="narrow router"),
        verdict("precision_policy", words=("computed in bfloat16",)),
        ranks=3,
        quick=True,
    ),
]
