"""Runs whose ranks hold parts of the vocabulary: losses over all parts, or by what one rank holds."""

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from numerics import watch
from tests.reports.report import Report
from tests.reports.trained import IGNORED, STEPS, WIDTH, WORDS, Trainer, built, sequences
from tests.reports.wrong import HEALTHY, seen, verdict

OVER: list[dist.ProcessGroup | None] = [None]
"""The group of the ranks that hold parts of one tensor; None: all ranks."""


class CopyIn(torch.autograd.Function):
    """Its input forth; the sum of all ranks' gradients back."""

    @staticmethod
    def forward(_ctx, x):  # type: ignore[no-untyped-def]
        return x.view_as(x)

    @staticmethod
    def backward(_ctx, grad):  # type: ignore[no-untyped-def,override]
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=OVER[0])
        return grad


class SumOut(torch.autograd.Function):
    """The sum of all ranks' inputs forth; its gradient back."""

    @staticmethod
    def forward(_ctx, x):  # type: ignore[no-untyped-def]
        x = x.clone()
        dist.all_reduce(x, group=OVER[0])
        return x

    @staticmethod
    def backward(_ctx, grad):  # type: ignore[no-untyped-def,override]
        return grad


class OwnWords(nn.Module):
    """A head that gives the logits of this rank's words."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.weight = nn.Parameter(head.weight.detach().chunk(dist.get_world_size())[dist.get_rank()].clone())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.linear(CopyIn.apply(x), self.weight)


PADDED = 51
"""Rows of a head that three ranks hold equal parts of, for fewer words."""


def built_padded() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model with a padded head, and its optimizer."""
    model, _ = built()
    torch.manual_seed(8)
    model.head = nn.Linear(WIDTH, PADDED, bias=False)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


@dataclass(frozen=True)
class InWords(Trainer):
    """Tensor parallelism of the head and the loss alone; one process takes torch's loss.

    `wrong` names what the first or all ranks do otherwise; `smooth` and `z` are coefficients of further terms. The head
    has rows for no word where `pads`.
    """

    padded: bool = True
    smooth: float = 0.0
    z: float = 0.0
    wrong: str = ""
    pads: bool = False

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        return built_padded() if self.pads else super().model()

    def train(self, rank: int, world: int, out: Path) -> None:
        model, optimizer = self.model()
        if world > 1:
            model.head = OwnWords(model.head)  # type: ignore[arg-type]
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        watcher = watch(
            model,
            optimizer,
            micro_batches=self.micro,
            dp=(0, 1),
            coords={"tp": rank},
            out=out,
            level="tensors",
        )
        for step in range(STEPS):
            count = int((sequences(step, padded=True)[1] != IGNORED).sum())
            for ids, labels in self.batches(step, 0, 1):
                logits, wanted = model(ids).flatten(0, 1).float(), labels.flatten()
                each = self.parted(logits, wanted) if world > 1 else self.whole(logits, wanted)
                known = (wanted != IGNORED) | (self.wrong == "mask" and rank == 1)
                ((each * known).sum() / count).backward()
            optimizer.step()
            optimizer.zero_grad()
        watcher.close()

    def whole(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of each position by all words."""
        logits = logits[:, :WORDS]
        found = functional.cross_entropy(
            logits, labels, ignore_index=IGNORED, reduction="none", label_smoothing=self.smooth
        )
        return found + self.z * logits.logsumexp(-1).square()

    def parted(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss of each position by the words of all ranks."""
        first = dist.get_rank() * logits.shape[-1]
        if self.pads and self.wrong != "padding":
            logits = logits.masked_fill(first + torch.arange(logits.shape[-1]) >= WORDS, float("-inf"))
        most = logits.detach().amax(-1)
        if self.wrong != "own maximum":
            dist.all_reduce(most, op=dist.ReduceOp.MAX)
        if self.wrong == "no maximum":
            most = torch.zeros_like(most)
        total = (logits - most[:, None]).exp().sum(-1)
        total = (total if self.wrong == "own sum" else SumOut.apply(total)).log() + most
        own = (labels >= first) & (labels < first + logits.shape[-1])
        held = (labels - first).clamp(0, logits.shape[-1] - 1)
        picked = logits.gather(-1, held[:, None])[:, 0]
        picked = SumOut.apply(picked if self.wrong == "all labels" else picked * own)
        smoothed = total - (1 - self.smooth) * picked
        if self.smooth:
            mean = logits.mean(-1) if self.wrong == "own mean" else SumOut.apply(logits.sum(-1)) / WORDS
            smoothed = smoothed - self.smooth * mean
        return smoothed + self.z * total.square()


REPORTS: list[Report] = [
    seen(
        "NVIDIA/apex#1457",
        "the vocabulary parted over 3 ranks, smoothed labels, ignored labels and a loss of denominators",
        "no bug",
        InWords(smooth=0.1, z=1e-2),
        InWords(smooth=0.1, z=1e-2),
        HEALTHY,
    ),
    seen(
        "NVIDIA/Megatron-LM#737",
        "smoothing by the mean of each rank's own words",
        "bug: the loss, with its parts",
        InWords(smooth=0.1, wrong="own mean"),
        InWords(smooth=0.1),
        verdict("bug", words=("over all parts",)),
    ),
    seen(
        "NVIDIA/Megatron-LM#7452",
        "rank 1 of the parted vocabulary leaves out no label",
        "bug: rank 1, tp",
        InWords(wrong="mask"),
        InWords(),
        verdict("bug", words=("'axis': 'tp'",)),
        quick=True,
    ),
    seen(
        "dylanyunlon/Neuron_SP#274",
        "no maximum is taken off before the exponentials, which are small enough",
        "no bug: the same function, rounded otherwise",
        InWords(wrong="no maximum"),
        InWords(),
        HEALTHY,
    ),
    seen(
        "hpcaitech/ColossalAI#5488",
        "a head of 51 rows for 48 words over 3 ranks; rows for no word are left out of the loss",
        "no bug",
        InWords(pads=True),
        InWords(pads=True),
        HEALTHY,
        model="built_padded",
        file=__file__,
    ),
    seen(
        "NVIDIA/Megatron-LM#1754",
        "the same, and rows for no word count in the sum of exponentials",
        "bug: the loss counts classes that are no words",
        InWords(pads=True, wrong="padding"),
        InWords(pads=True),
        verdict("bug", words=("3 of 51 classes (from 48 to 50)",)),
        quick=True,
        model="built_padded",
        file=__file__,
    ),
]
