"""Everything a planted bug could change in a run, in the order of execution, as hashes: one list a rank."""

import hashlib
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from reftrain.config.run import RunConfig
from reftrain.faults.bugs import plant
from reftrain.rank.hooks import HookList
from reftrain.schedule.actions import Kind
from tests.reftrain.workers import trainer

ORDER = ("init", "input", "forward", "recomputed", "loss", "grad", "norm", "logged", "param")


@dataclass(frozen=True)
class Seen:
    """One observed value: its kind (see `ORDER`), step, what it is, and the hash of its bits."""

    kind: str
    step: int
    name: str
    digest: str
    norm: float

    @property
    def key(self) -> tuple[str, int, str]:
        return self.kind, self.step, self.name


def digest(value: Any) -> str:
    hashed = hashlib.sha1(usedforsecurity=False)
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            hashed.update(leaf.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
        else:
            hashed.update(repr(leaf).encode())
    return hashed.hexdigest()


def norm(value: Any) -> float:
    leaves = [leaf.detach().double() for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return float(sum(leaf.square().sum() for leaf in leaves)) ** 0.5 if leaves else float(value)


class Observer:
    """Hooks on all modules of a trainer's stages."""

    def __init__(self, made: Any) -> None:
        self.seen: list[Seen] = []
        self.step, self.backward = 0, False
        self.made = made
        for stage in made.stages.values():
            for name, module in stage.module.named_modules():
                if name:
                    module.register_forward_hook(self.output(name))
        cut, back = made.cutter.cut, made.executor._do[Kind.BACKWARD]

        def cutting(batch: Any) -> Any:
            self.note("input", "tokens", batch.tokens)
            out = cut(batch)
            self.note("input", "targets", out.targets)
            return out

        def backward(action: Any) -> None:
            self.backward = True
            back(action)
            self.backward = False

        made.cutter.cut, made.executor._do[Kind.BACKWARD] = cutting, backward

    def output(self, name: str) -> Any:
        def hook(module: Any, inputs: Any, out: Any) -> None:
            del module, inputs
            self.note("recomputed" if self.backward else "forward", name, out)

        return hook

    def note(self, kind: str, name: str, value: Any) -> None:
        self.seen.append(Seen(kind, self.step, name, digest(value), norm(value)))

    def run(self, steps: int) -> list[Seen]:
        for name, value in self.made.local_parameters().items():
            self.note("init", name, value)
        for self.step in range(steps):
            got = self.made.compute_gradients(self.step)
            for micro_batch, loss in self.made.executor.loss_sums.items():
                self.note("loss", str(micro_batch), loss)
            for name, value in self.made.local_gradients().items():
                self.note("grad", name, value)
            self.note("norm", "norm", got.norm)
            self.note("logged", "loss", got.loss)
            self.made.apply_gradients(self.step, got.norm)
            for name, value in self.made.local_parameters().items():
                self.note("param", name, value)
        return self.seen


def observed(rank: int, world: int, store: str, config: RunConfig) -> list[Seen]:
    """What one rank of a run with its planted bugs computes."""
    with plant(config, rank), trainer(rank, world, store, config, HookList()) as made:
        return Observer(made).run(config.steps)


def differing(clean: list[list[Seen]], planted: list[list[Seen]]) -> list[tuple[str, int, str]]:
    """Keys of all values that differ on any rank: by step, kind, and when they came on the first rank to differ."""
    first: dict[tuple[str, int, str], int] = {}
    for before, after in zip(clean, planted, strict=True):
        same_keys = [s.key for s in before] == [s.key for s in after]
        for index, (a, b) in enumerate(zip(before, after, strict=same_keys)):
            if (a.digest != b.digest) if same_keys else a != b:
                first[b.key] = min(index, first.get(b.key, index))
    return sorted(first, key=lambda key: (key[1], ORDER.index(key[0]), first[key]))


def largest_change(clean: list[list[Seen]], planted: list[list[Seen]], kind: str) -> float:
    """Greatest relative change of the Euclidean norm of a value of this kind."""
    pairs = (
        (a.norm, b.norm)
        for before, after in zip(clean, planted, strict=True)
        for a, b in zip(before, after, strict=False)
        if a.kind == kind
    )
    return max((abs(b - a) / max(abs(a), 1e-30) for a, b in pairs), default=0.0)
