"""Random numbers in training: dropout, drop-path, crops, and recomputation."""

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from numerics import watch
from tests.trainers.case import THREE, Case, run
from tests.trainers.parts import (
    BATCH,
    LENGTH,
    WIDTH,
    WORDS,
    Model,
    backward,
    mean_loss,
    new_model,
    sequences,
)

STEPS = 2
DROPPED = 0.2


class Recomputed(nn.Module):
    """A block whose activations are computed again in the backward."""

    def __init__(self, block: nn.Module, keep_state: bool) -> None:
        super().__init__()
        self.block, self.keep_state = block, keep_state

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        out: Tensor = checkpoint(self.block, x, mask, use_reentrant=False, preserve_rng_state=self.keep_state)
        return out


class Residual(nn.Module):
    """A residual branch that a whole sequence skips at random (drop-path)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        branch: Tensor = self.down(functional.gelu(self.up(self.norm(x))))
        if not self.training:
            return x + branch
        kept = (torch.rand(len(x), 1, 1) >= DROPPED).to(x.dtype)
        return x + branch * kept / (1 - DROPPED)


class PathModel(nn.Module):
    """Words, two residual branches with drop-path, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.ModuleList([Residual(), Residual()])

    def forward(self, words: Tensor) -> Tensor:
        """Words (B, S) to logits (B, S, V)."""
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(x)
        return logits


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """Plain AdamW."""
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def build() -> tuple[Model, torch.optim.Optimizer]:
    """The whole model with dropout."""
    model = new_model(dropout=DROPPED)
    return model, optimizer_of(model)


def build_recomputed() -> tuple[Model, torch.optim.Optimizer]:
    """The same, with names as recomputation makes them."""
    model = new_model(dropout=DROPPED)
    model.layers = nn.ModuleList([Recomputed(layer, keep_state=True) for layer in model.layers])
    return model, optimizer_of(model)


def build_path() -> tuple[PathModel, torch.optim.Optimizer]:
    """The model with drop-path."""
    torch.manual_seed(0)
    model = PathModel()
    return model, optimizer_of(model)


def build_plain() -> tuple[Model, torch.optim.Optimizer]:
    """The model without dropout."""
    model = new_model()
    return model, optimizer_of(model)


def train(rank: int, world: int, model: str = "dropout", seed: int = 1, bug: str = "") -> None:
    """DDP with random numbers drawn apart on each rank."""
    net: nn.Module
    net, optimizer = build_path() if model == "path" else build()
    if model == "recomputed":
        assert isinstance(net, Model)
        kept = bug != "recomputed apart"
        net.layers = nn.ModuleList([Recomputed(layer, kept) for layer in net.layers])
    wrapped = DistributedDataParallel(net)
    torch.manual_seed(seed if bug == "ranks alike" else 100 * seed + rank)
    watcher = watch(wrapped, optimizer)
    for step in range(STEPS):
        if bug == "seeded each step":
            torch.manual_seed(seed + rank)
        words = sequences(step, rank, world)
        backward(mean_loss(wrapped(words[:, :-1]), words[:, 1:]))
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


def train_crops(rank: int, world: int, seed: int = 1, bug: str = "") -> None:
    """Each sequence is a random crop of a long text, drawn on its rank."""
    text = torch.randint(1, WORDS, (4000,), generator=torch.Generator().manual_seed(9))
    model, optimizer = build_plain()
    wrapped = DistributedDataParallel(model)
    generator = torch.Generator().manual_seed(seed if bug == "crops alike" else 100 * seed + rank)
    watcher = watch(wrapped, optimizer)
    for _ in range(STEPS):
        begins = torch.randint(0, len(text) - LENGTH - 1, (BATCH // world,), generator=generator)
        words = torch.stack([text[begin : begin + LENGTH + 1] for begin in begins.tolist()])
        backward(mean_loss(wrapped(words[:, :-1]), words[:, 1:]))
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


BASE = run(train, 3)
UNTRUE = r"only the order of sums can make (the runs|it) differ"
HEALTHY = (
    Case("dropout_again", run(train, 3), build, BASE, questions=THREE),
    Case("dropout_against_one", run(train, 3), build, run(train, 1), questions=THREE, never=UNTRUE),
    Case("dropout_other_seed", run(train, 3, seed=2), build, BASE, never=UNTRUE),
    Case(
        "dropout_recomputed",
        run(train, 3, model="recomputed"),
        build_recomputed,
        run(train, 3, model="recomputed"),
    ),
    Case(
        "drop_path_against_one",
        run(train, 3, model="path"),
        build_path,
        run(train, 1, model="path"),
        never=UNTRUE,
    ),
    Case(
        "random_crops_other_seed",
        run(train_crops, 3, seed=2),
        build_plain,
        run(train_crops, 3),
        questions=THREE,
    ),
)
BROKEN = (
    Case(
        "dropout_ranks_alike",
        run(train, 3, bug="ranks alike"),
        build,
        BASE,
        planted="all data-parallel ranks drop the same elements",
        source="transformers#37932",
        where=r"drop|random|alike|same",
        reason=r"drop|alike|same",
        word=r"drops? (alike|the same)",
        never=UNTRUE,
    ),
    Case(
        "dropout_recomputed_apart",
        run(train, 3, model="recomputed", bug="recomputed apart"),
        build_recomputed,
        run(train, 3, model="recomputed"),
        planted="recomputation drops other elements than the forward",
        source="OLMo-core#828",
        where=r"recomput|drop|down|layers",
        reason=r"recomput|drop",
    ),
    Case(
        "dropout_seeded_each_step",
        run(train, 3, bug="seeded each step"),
        build,
        BASE,
        planted="the generator is seeded in each step, so that all steps drop alike",
        where=r"drop|random|generator|step",
        reason=r"drop|random|generator",
    ),
    Case(
        "random_crops_alike",
        run(train_crops, 3, bug="crops alike"),
        build_plain,
        run(train_crops, 3),
        planted="all ranks draw the same crops",
        source="pytorch#5059",
        where=r"input|words|sequence|data",
        reason=r"input|sequence|data|same|alike",
        word=r"read the same|same (inputs|sequences|data)",
    ),
)
CASES = (*HEALTHY, *BROKEN)
