"""Mixture of experts with an auxiliary loss for balance, under DDP; and a forward for inference."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from numerics import watch
from tests.trainers.case import THREE, Case, run
from tests.trainers.parts import WIDTH, WORDS, Model, backward, mean_loss, new_model, sequences

STEPS, EXPERTS, BALANCE = 2, 4, 0.05


class Experts(nn.Module):
    """Each token goes to the expert that the router scores highest."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, EXPERTS, bias=False)
        self.experts = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(EXPERTS)])
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, D) to (B, S, D); leaves the balance loss in `balance`."""
        chances = self.router(x).softmax(-1)
        best, chosen = chances.max(-1)
        share = functional.one_hot(chosen, EXPERTS).float().mean((0, 1))
        self.balance = EXPERTS * (share * chances.mean((0, 1))).sum()
        out = torch.zeros_like(x)
        for index, expert in enumerate(self.experts):
            out = out + expert(x) * (chosen == index).unsqueeze(-1)
        mixed: Tensor = x + out * best.unsqueeze(-1)
        return mixed


class Mixture(nn.Module):
    """Words, experts, a head; returns logits and the balance loss."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mixture, self.head = nn.Embedding(WORDS, WIDTH), Experts(), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Words (B, S) to logits (B, S, V) and a scalar."""
        logits = self.head(self.mixture(self.words(words)))
        return logits, self.mixture.balance


def build() -> tuple[Mixture, torch.optim.Optimizer]:
    """The whole model and its optimiser."""
    torch.manual_seed(0)
    model = Mixture()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def build_decoder() -> Model:
    """The decoder with dropout, for training and inference."""
    return new_model(dropout=0.2)


def train(rank: int, world: int, accumulate: int = 1, bug: str = "") -> None:
    """DDP; the balance loss is an average over micro-batches as the loss is."""
    model, optimizer = build()
    wrapped = DistributedDataParallel(model)
    watcher = watch(wrapped, optimizer, micro_batches=accumulate)
    for step in range(STEPS):
        for words in sequences(step, rank, world).chunk(accumulate):
            logits, balance = wrapped(words[:, :-1])
            if bug == "detached":
                balance = balance.detach()
            if bug == "not divided":
                balance = balance * accumulate
            backward((mean_loss(logits, words[:, 1:]) + BALANCE * balance) / accumulate)
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


def infer(rank: int, world: int, bug: str = "", dtype: torch.dtype = torch.float32) -> None:
    """The forward of an inference engine over a step's sequences."""
    model = build_decoder().to(dtype)
    if bug != "dropout left on":
        model.eval()
    torch.manual_seed(7 + rank)
    idle = torch.optim.SGD(model.parameters(), lr=0.0)  # watch() asks for an optimiser
    watcher = watch(model, idle, dp=(rank, world), coords={"dp": rank})
    with torch.no_grad():
        model(sequences(0, rank, world)[:, :-1])
    watcher.close()


def score_forward(rank: int, world: int) -> None:
    """The trainer's forward over the same sequences, in eval mode and with gradients."""
    model = build_decoder()
    model.eval()
    idle = torch.optim.SGD(model.parameters(), lr=0.0)  # watch() asks for an optimiser
    watcher = watch(model, idle, dp=(rank, world), coords={"dp": rank})
    words = sequences(0, rank, world)
    backward(mean_loss(model(words[:, :-1]), words[:, 1:]))
    watcher.close()


SAME = run(train, 3)
HEALTHY = (
    Case("experts_balance", SAME, build, SAME),
    Case("experts_balance_against_one", run(train, 3), build, run(train, 1)),
    Case("inference_forward", run(infer, 3), build_decoder, run(score_forward, 3), questions=THREE),
)
BROKEN = (
    Case(
        "experts_balance_detached",
        run(train, 3, bug="detached"),
        build,
        SAME,
        planted="the gradient of the balance loss never reaches the router",
        source="NeMo-Automodel#1408",
        where=r"router|balance|mixture|loss",
        reason=r"router|balance|loss",
        word=r"not checked: the loss|contributes to no gradient",
    ),
    Case(
        "experts_balance_not_divided",
        run(train, 3, accumulate=2, bug="not divided"),
        build,
        run(train, 3, accumulate=2),
        planted="the balance loss is not divided by the number of micro-batches",
        source="Megatron-LM#3769",
        where=r"router|balance|mixture|loss",
        reason=r"router|balance|loss",
        word=r"not checked: the loss|but for the loss",
    ),
    Case(
        "inference_dropout_left_on",
        run(infer, 3, bug="dropout left on"),
        build_decoder,
        run(score_forward, 3),
        planted="the inference forward drops: eval() is forgotten",
        where=r"drop",
        reason=r"drop|eval",
        questions=("pair", "both"),
    ),
    Case(
        "inference_in_bf16",
        run(infer, 3, dtype=torch.bfloat16),
        build_decoder,
        run(score_forward, 3),
        planted="inference computes in BF16, the trainer in FP32",
        where=r"bf16|bfloat16|format",
        reason=r"bf16|bfloat16|format",
        questions=("pair", "both"),
    ),
)
CASES = (*HEALTHY, *BROKEN)
