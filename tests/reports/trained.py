"""Two tiny captured runs: a sound one, and one as a report describes it.

`Trainer` is DDP (or one process) over a small decoder with three steps of two micro-batches; a report overrides what
its author did otherwise. `pair` runs it on some ranks in forked processes, which write captures that `numerics compare`
reads.
"""

import multiprocessing
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from numerics import watch

WORDS, WIDTH, LENGTH, SEQUENCES, STEPS, MICRO = 48, 16, 9, 12, 3, 2
IGNORED = -100


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.eager = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        if self.eager:
            mask = torch.full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
            mixed = (q @ k.transpose(-2, -1) / WIDTH**0.5 + mask).softmax(-1) @ v
        else:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed)
        return x + self.down(functional.gelu(self.up(self.mlp_norm(x))))


class Decoder(nn.Module):
    """A decoder; its head shares the embedding's weight where `tied`."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.words, self.blocks = nn.Embedding(WORDS, WIDTH), nn.ModuleList([Block(), Block()])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def built(*, tied: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The whole model and its optimizer, as `--model` names them."""
    torch.manual_seed(3)
    model = Decoder(tied=tied)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def built_tied() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same with tied weights."""
    return built(tied=True)


def built_sparing(*, spares: bool = True) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same with weight decay on matrices, and on biases and norms unless these are spared."""
    model, _ = built()
    small = [p for p in model.parameters() if p.dim() < 2]
    large = [p for p in model.parameters() if p.dim() > 1]
    groups = [
        {"params": large, "weight_decay": 0.5},
        {"params": small, "weight_decay": 0.0 if spares else 0.5},
    ]
    return model, torch.optim.AdamW(groups, lr=0.01)


def built_dropping() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model with dropout behind each block's projection."""
    torch.manual_seed(3)
    model = Decoder()
    for block in model.blocks:
        block.add_module("out", nn.Sequential(block.get_submodule("out"), nn.Dropout(0.2)))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def built_with_momentum() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and SGD with momentum, which counts no steps."""
    model, _ = built()
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


class Recomputing(Decoder):
    """Blocks are recomputed; by the reentrant form, whose inputs need gradients of their own."""

    reentrant = False

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        logits: torch.Tensor = self.head(self.norm(x))
        return logits


def built_recomputing() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model with recomputed blocks on frozen embeddings."""
    torch.manual_seed(3)
    model = Recomputing()
    model.words.weight.requires_grad_(False)
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)


def sequences(step: int, *, padded: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """A step's sequences and their labels, (SEQUENCES, LENGTH - 1); padded labels are ignored."""
    generator = torch.Generator().manual_seed(50 + step)
    ids = torch.randint(1, WORDS, (SEQUENCES, LENGTH), generator=generator)
    given, labels = ids[:, :-1], ids[:, 1:].clone()
    if padded:
        ends = torch.randint(2, LENGTH, (SEQUENCES,), generator=generator)
        labels[torch.arange(LENGTH - 1) >= ends[:, None]] = IGNORED
    return given, labels


@dataclass(frozen=True)
class Trainer:
    """A trainer; a report replaces what its author did otherwise."""

    tied: bool = False
    padded: bool = False
    micro: int = MICRO

    def model(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model and its optimizer before wrapping."""
        return built(tied=self.tied)

    def optimizer(self, wrapped: nn.Module, made: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """The optimizer that steps."""
        return made

    def wrapped(self, model: nn.Module) -> nn.Module:
        """The model as it trains."""
        return DistributedDataParallel(model) if dist.is_initialized() else model

    def batches(self, step: int, rank: int, world: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """The micro-batches of a rank."""
        ids, labels = (part.chunk(world)[rank] for part in sequences(step, padded=self.padded))
        return list(zip(ids.chunk(self.micro), labels.chunk(self.micro), strict=True))

    def loss(self, logits: torch.Tensor, labels: torch.Tensor, step: int) -> torch.Tensor:
        """What is differentiated."""
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)
        return loss / self.micro

    def before_forward(self, wrapped: nn.Module, number: int) -> None:
        """What happens before the forward of a micro-batch."""

    def forward(self, wrapped: nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """What the model makes of a micro-batch."""
        logits: torch.Tensor = wrapped(ids)
        return logits

    def before_update(self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, rank: int) -> None:
        """What happens between backward and update."""

    def after_update(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, world: int
    ) -> torch.optim.Optimizer:
        """What happens behind the update; returns the optimizer of the next step."""
        return optimizer

    def train(self, rank: int, world: int, out: Path) -> None:
        """Train on one rank and capture."""
        model, made = self.model()
        wrapped = self.wrapped(model)
        optimizer = self.optimizer(wrapped, made)
        watcher = watch(
            wrapped, optimizer, micro_batches=self.micro, dp=(rank, world), out=out, level="tensors"
        )
        for step in range(STEPS):
            for number, (ids, labels) in enumerate(self.batches(step, rank, world)):
                self.before_forward(wrapped, number)
                logits = self.forward(wrapped, ids)
                watcher.targets(labels)
                self.loss(logits, labels, step).backward()
            self.before_update(model, optimizer, step, rank)
            optimizer.step()
            optimizer.zero_grad()
            optimizer = self.after_update(model, optimizer, step, world)
        watcher.close()


def run(trainer: Trainer, world: int, out: Path) -> None:
    """Run a trainer on some ranks; raises RuntimeError where a rank fails."""
    out.parent.mkdir(parents=True, exist_ok=True)
    store = str(out.with_suffix(".store"))
    context = multiprocessing.get_context("fork")
    ranks = [context.Process(target=work, args=(trainer, rank, world, store, out)) for rank in range(world)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(120)
    if any(process.exitcode for process in ranks):
        raise RuntimeError(f"a rank failed: {[process.exitcode for process in ranks]}")
    Path(store).unlink(missing_ok=True)


def work(trainer: Trainer, rank: int, world: int, store: str, out: Path) -> None:
    """One rank, which warns as a user's program does, also where tests take warnings for errors."""
    warnings.simplefilter("default")
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    trainer.train(rank, world, out)
    if world > 1:
        dist.barrier()
        dist.destroy_process_group()


def pair(trainer: Trainer, sound: Trainer, world: int = 3, sound_world: int = 1) -> Callable[[Path], None]:
    """Makes `run` by a trainer and `baseline` by another."""

    def make(folder: Path) -> None:
        run(trainer, world, folder / "run")
        run(sound, sound_world, folder / "baseline")

    return make
