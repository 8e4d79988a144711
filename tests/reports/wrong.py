"""Runs whose numbers are wrong, or only seem to be, as their authors' captures would show them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from tests.reports.report import MISLEADING, OPEN, RIGHT, WRONG, Answer, Report
from tests.reports.trained import IGNORED, MICRO, Trainer, built, built_sparing, pair, sequences

Batches = list[tuple[torch.Tensor, torch.Tensor]]


class NotDivided(Trainer):
    """The loss is not divided by the number of micro-batches."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        return super().loss(logits, labels, step) * MICRO


@dataclass(frozen=True)
class OverTokens(Trainer):
    """The step's sum of losses over all tokens that count, as it should be; DDP averages over ranks."""

    padded: bool = True
    ranks: int = 1

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        whole = int((sequences(step, padded=True)[1] != IGNORED).sum())
        flat = logits.flatten(0, 1).float()
        return functional.cross_entropy(flat, labels.flatten(), ignore_index=IGNORED, reduction="sum") * (
            self.ranks / whole
        )


class StepsTooOften(Trainer):
    """The schedule makes a step for each process."""

    def after_update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, world: int
    ) -> torch.optim.Optimizer:
        for group in optimizer.param_groups:
            group["lr"] = 0.01 * 0.8 ** ((step + 1) * self.steps_of(world))
        return optimizer

    def steps_of(self, world: int) -> int:
        """Steps of the schedule in one of training."""
        return world


class StepsOnce(StepsTooOften):
    """The schedule makes one step."""

    def steps_of(self, world: int) -> int:
        return 1


class StaleParameters(Trainer):
    """The optimizer holds copies of the parameters, made before the model was wrapped."""

    def optimizer(self, wrapped: nn.Module, made: torch.optim.Optimizer) -> torch.optim.Optimizer:
        return torch.optim.AdamW([nn.Parameter(p.detach().clone()) for p in wrapped.parameters()], lr=0.01)


class OneUnreduced(Trainer):
    """The last norm's gradient is not reduced over ranks, as of sequence parallelism without its all-reduce."""

    def wrapped(self, model: nn.Module) -> nn.Module:
        names = ["norm.weight", "norm.bias"]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
        return super().wrapped(model)


class ClipsScaled(Trainer):
    """Gradients of a scaled loss are clipped before the scale is taken out."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        return super().loss(logits, labels, step) * 1024

    def before_update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(1024)


class Clips(Trainer):
    """Gradients are clipped as they should be."""

    def before_update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)


class SameData(Trainer):
    """Every rank trains on the first rank's share."""

    def batches(self, step: int, rank: int, world: int) -> Batches:
        return super().batches(step, 0, world)


class FreshState(Trainer):
    """Behind step 0 the run resumes from a checkpoint, whose moments are lost."""

    def after_update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, world: int
    ) -> torch.optim.Optimizer:
        if step == 0:
            optimizer.state.clear()
        return optimizer


class Untied(Trainer):
    """The head's weight became a copy of the embedding's."""

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, _ = built(tied=True)
        model.head.weight = nn.Parameter(model.words.weight.detach().clone())  # type: ignore[union-attr]
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)


class Poisoned(Trainer):
    """One sequence of rank 1 has a loss of not-a-number in step 1."""

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        bad = step == 1 and dist.is_initialized() and dist.get_rank() == 1
        return super().loss(logits, labels, step) * (float("nan") if bad else 1.0)


class Eager(Trainer):
    """Attention by matrix products in place of the fused one."""

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        model, optimizer = super().model()
        for block in model.blocks:  # type: ignore[union-attr]
            block.eager = True
        return model, optimizer


class SecondFirst(Trainer):
    """Gradients of each micro-batch are summed in another order: the second one comes first."""

    def batches(self, step: int, rank: int, world: int) -> Batches:
        return list(reversed(super().batches(step, rank, world)))


@dataclass(frozen=True)
class Decays(Trainer):
    """Weight decay on matrices, and on biases and norms unless these are spared."""

    spares: bool = True

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        return built_sparing(spares=self.spares)


class Shuffled(Trainer):
    """Ranks get the same sequences as the baseline, dealt in turns instead of in blocks."""

    def batches(self, step: int, rank: int, world: int) -> Batches:
        ids, labels = (part[rank::world] for part in sequences(step))
        return list(zip(ids.chunk(MICRO), labels.chunk(MICRO), strict=True))


def verdict(*verdicts: str, words: tuple[str, ...] = (), must_say: bool = False) -> Callable[[Answer], str]:
    """Right where the verdict is one of these and one of the words is said.

    A bug called in a sound run, or a broken run passed, is wrong; an open verdict is open, unless it must say one of
    the words; other words are misleading.
    """

    def judge(answer: Answer) -> str:
        if answer.verdict in verdicts:
            return RIGHT if not words or answer.says(*words) else MISLEADING
        if answer.verdict not in {"undecided", "incomparable"}:
            return WRONG
        return MISLEADING if must_say and not answer.says(*words) else OPEN

    return judge


def sound_or_model(answer: Answer) -> str:
    """Right where no bug is called; open where the answer says that `--model` would decide it."""
    if answer.verdict == "undecided":
        return OPEN if "--model" in answer.text else MISLEADING
    return HEALTHY(answer)


COMPARE = ("numerics", "compare", "--parallel", "{}/run", "--baseline", "{}/baseline")
MODEL = Path(__file__).parent / "trained.py"
HEALTHY = verdict("identical", "drift", "rounding")


def seen(
    source: str,
    input_: str,
    expected: str,
    trainer: Trainer,
    sound: Trainer,
    judge: Callable[[Answer], str],
    *,
    ranks: int = 3,
    sound_ranks: int = 1,
    model: str = "built",
    file: Path | str = MODEL,
    quick: bool = False,
) -> Report:
    """A report on a pair of runs; an empty `model` asks without one."""
    command = (*COMPARE, "--model", f"{file}:{model}") if model else COMPARE
    make = pair(trainer, sound, ranks, sound_ranks)
    return Report(source, "wrong", input_, expected, make, command, judge, quick)


SOUND = Trainer()
REPORTS = [
    seen(
        "pytorch/pytorch#14007",
        "sound DDP on 3 ranks beside one process: gradients differ in their last digits",
        "no bug: the order of sums",
        SOUND,
        SOUND,
        HEALTHY,
    ),
    seen(
        "deepspeedai/DeepSpeed#5583",
        "the same global batch on 3 ranks and on 2",
        "no bug: the order of sums",
        SOUND,
        SOUND,
        HEALTHY,
        sound_ranks=2,
    ),
    seen(
        "cdtools-developers/cdtools#17",
        "the same sequences dealt in turns to 3 ranks, in blocks to one process",
        "no bug: the same data in another order",
        Shuffled(),
        SOUND,
        HEALTHY,
    ),
    seen(
        "karpathy/nanoGPT#102",
        "attention by matrix products beside the fused kernel",
        "no bug: the same function, rounded otherwise",
        Eager(),
        SOUND,
        HEALTHY,
    ),
    seen(
        "pytorch/pytorch#49966",
        "sound DDP, the second micro-batch first; asked without `--model`",
        "no bug: the order of sums, or open and that `--model` decides it",
        SecondFirst(),
        SOUND,
        sound_or_model,
        model="",
    ),
    seen(
        "huggingface/trl#2175",
        "padded sequences, the loss over the step's tokens as it should be, on 3 ranks and on one",
        "no bug",
        OverTokens(ranks=3),
        OverTokens(),
        HEALTHY,
    ),
    seen(
        "huggingface/transformers#34191",
        "padded sequences, a mean of the means of micro-batches, beside the mean over all tokens",
        "bug: a mean of means, from the loss on",
        Trainer(padded=True),
        OverTokens(),
        verdict("bug", words=("mean of", "means", "tokens", "positions")),
    ),
    seen(
        "karpathy/nanoGPT#206",
        "the loss is not divided by the number of micro-batches",
        "bug: gradients are 2 times the baseline's",
        NotDivided(),
        SOUND,
        verdict("bug", words=("2 times", "twice")),
    ),
    seen(
        "huggingface/accelerate#2926",
        "the schedule makes three steps in one, on 3 ranks",
        "bug: the learning rate differs from step 1 on",
        StepsTooOften(),
        StepsOnce(),
        verdict("bug", words=("rate",)),
    ),
    seen(
        "huggingface/accelerate#3256",
        "the optimizer holds copies of the parameters, so that nothing is trained",
        "bug: the parameters do not move",
        StaleParameters(),
        SOUND,
        verdict(
            "bug",
            words=(
                "not updated",
                "stand still",
                "not change",
                "unchanged",
                "does not hold",
                "never",
                "not move",
            ),
        ),
    ),
    seen(
        "NVIDIA/Megatron-LM#1446",
        "the last norm's gradient is not reduced over 3 ranks",
        "bug: a missing all-reduce of norm.weight",
        OneUnreduced(),
        SOUND,
        verdict("bug", words=("norm.weight", "norm.bias")),
    ),
    seen(
        "Lightning-AI/pytorch-lightning#9599",
        "gradients of a loss scaled by 1024 are clipped before the scale is taken out",
        "bug: gradients are too small by the clip",
        ClipsScaled(),
        Clips(),
        verdict("bug", words=("clip is", "clipped before", "clipping")),
    ),
    seen(
        "facebookresearch/fairseq#1383",
        "each of 3 ranks reads the first rank's data",
        "bug: the ranks train on the same sequences",
        SameData(),
        SOUND,
        verdict("bug", words=("same", "alike", "other data", "sequences")),
    ),
    seen(
        "KempnerInstitute/KempnerForge#115",
        "the moments of the optimizer are lost behind step 0, beside a run that never stopped",
        "bug: the optimizer's state",
        FreshState(),
        SOUND,
        verdict("bug", words=("state", "moment", "exp_avg", "optimizer")),
    ),
    seen(
        "NVIDIA/Megatron-LM#656",
        "the head's weight became a copy of the embedding's, so that its gradient lacks a term",
        "bug: the weights are no longer tied",
        Untied(),
        Trainer(tied=True),
        verdict("bug", words=("tied", "missing term", "head.weight", "words.weight")),
        model="built_tied",
    ),
    seen(
        "ecmwf/WeatherGenerator#2718",
        "the loss of rank 1 is not a number in step 1",
        "bug: rank 1, step 1",
        Poisoned(),
        SOUND,
        verdict("bug", words=("'nan'", "not a number", "not finite"), must_say=True),
    ),
    seen(
        "mosaicml/composer#3493",
        "weight decay on biases and norms too, where the baseline spares them",
        "bug: the update of norms and biases",
        Decays(spares=False),
        Decays(),
        verdict("bug", words=("decay", "norm.weight")),
        model="built_sparing",
    ),
]
