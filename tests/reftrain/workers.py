"""What the pooled ranks do: one process group, one trainer, one answer."""

import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.distributed.tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from reftrain.config.run import RunConfig
from reftrain.job.one_rank import train_rank
from reftrain.model.parameters import Part
from reftrain.rank.hooks import HookList, Hooks
from reftrain.rank.world import World
from reftrain.train.checkpoint import Checkpointer
from reftrain.train.evaluation import Evaluator
from reftrain.train.trainer import Trainer


@dataclass(frozen=True)
class RankResult:
    """One rank's share of a step."""

    loss: float
    valid_tokens: int
    norm: float
    boxes: dict[str, tuple[Part, npt.NDArray[Any]]]
    shapes: dict[str, tuple[int, ...]]
    buffers: int = 0


@contextlib.contextmanager
def trainer(
    rank: int, world: int, store: str, config: RunConfig, hooks: HookList, device: str = "cpu"
) -> Iterator[Trainer]:
    backend = "gloo" if device == "cpu" else "nccl"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=world)
    try:
        yield Trainer(config, hooks, torch.device(device))
        dist.barrier()
    finally:
        dist.destroy_process_group()


def boxes(made: Trainer, tensors: dict[str, torch.Tensor]) -> dict[str, tuple[Part, npt.NDArray[Any]]]:
    parts = made.parts()
    return {n: (parts[n], parts[n].within(t).float().numpy(force=True).copy()) for n, t in tensors.items()}


def gradients(rank: int, world: int, store: str, config: RunConfig) -> RankResult:
    with trainer(rank, world, store, config, HookList()) as made:
        got = made.compute_gradients(0)
        return RankResult(
            got.loss,
            got.valid_tokens,
            float(got.norm),
            boxes(made, made.local_gradients()),
            {name: spec.shape for name, spec in made.specs().items()},
            made.executor.pool.made,
        )


def parameters_after(rank: int, world: int, store: str, config: RunConfig, steps: int) -> RankResult:
    with trainer(rank, world, store, config, HookList()) as made:
        for step in range(steps):
            got = made.compute_gradients(step)
            made.apply_gradients(step, got.norm)
        return RankResult(
            got.loss,
            got.valid_tokens,
            float(got.norm),
            boxes(made, made.local_parameters()),
            {name: spec.shape for name, spec in made.specs().items()},
        )


def assemble(results: list[RankResult]) -> dict[str, npt.NDArray[Any]]:
    """Whole tensors from all ranks' boxes; every element is covered, and copies agree in their bits."""
    whole: dict[str, npt.NDArray[Any]] = {}
    covered: dict[str, npt.NDArray[Any]] = {}
    for rank, result in enumerate(results):
        for name, (part, values) in result.boxes.items():
            target = whole.setdefault(name, np.zeros(result.shapes[name], dtype=values.dtype))
            seen = covered.setdefault(name, np.zeros(result.shapes[name], dtype=bool))
            box = tuple(slice(o, o + n) for o, n in zip(part.offsets, part.sizes, strict=True))
            copies = seen[box]
            if not np.array_equal(target[box][copies], values[copies]):
                raise AssertionError(f"rank {rank} holds another {name} than the ranks before it")
            target[box] = values
            seen[box] = True
    for name, seen in covered.items():
        if not seen.all():
            raise AssertionError(f"nobody holds part of {name}")
    return whole


def continued(
    rank: int, world: int, store: str, config: RunConfig, folder: str, source: str, steps: int
) -> RankResult:
    """Load a checkpoint if one is named, train on, save into `folder`; return the whole state then."""
    with trainer(rank, world, store, config, HookList()) as made:
        checkpointer = Checkpointer(made, Path(folder))
        first = checkpointer.load(Path(source)) if source else 0
        loss, norm = float("nan"), float("nan")
        for step in range(first, first + steps):
            got = made.compute_gradients(step)
            made.apply_gradients(step, got.norm)
            checkpointer.after_step(step)
            loss, norm = got.loss, float(got.norm)
        checkpointer.wait()
        state = {f"model.{n}": t for n, t in made.local_parameters().items()}
        for kind, tensors in made.optimizer.state().items():
            state |= {f"{kind}.{n}": t for n, t in tensors.items()}
        parts, specs = made.parts(), made.specs()
        held = {
            key: (parts[name], parts[name].within(t).float().numpy(force=True).copy())
            for key, t in state.items()
            for name in [key.partition(".")[2]]
        }
        return RankResult(loss, first, norm, held, {key: specs[key.partition(".")[2]].shape for key in held})


def losses(rank: int, world: int, store: str, config: RunConfig) -> list[float]:
    """Loss of every step of a run."""
    with trainer(rank, world, store, config, HookList()) as made:
        out = []
        for step in range(config.steps):
            got = made.compute_gradients(step)
            made.apply_gradients(step, got.norm)
            out.append(got.loss)
        return out


class Diary(Hooks):
    """Notes every call."""

    def __init__(self) -> None:
        self.notes: list[tuple[Any, ...]] = []

    def step_begin(self, step):
        self.notes.append(("step_begin", step))

    def data_begin(self, step):
        self.notes.append(("data_begin", step))

    def data_end(self, step):
        self.notes.append(("data_end", step))

    def action_begin(self, action):
        self.notes.append(("action_begin", str(action)))

    def action_end(self, action):
        self.notes.append(("action_end", str(action)))

    def segment_begin(self, segment):
        self.notes.append(("segment_begin", segment.name, segment.layer, segment.phase, segment.flops))

    def segment_end(self, segment):
        self.notes.append(("segment_end", segment.name, segment.layer, segment.phase, segment.flops))

    def collective_begin(self, call):
        self.notes.append(("collective_begin", call.axis, call.op, call.label, call.peer))

    def collective_end(self, call):
        self.notes.append(("collective_end", call.axis, call.op, call.label, call.peer))


def diary(rank: int, world: int, store: str, config: RunConfig) -> list[tuple[Any, ...]]:
    """Everything the hooks were told in one step."""
    notes = Diary()
    with trainer(rank, world, store, config, HookList([notes])) as made:
        got = made.compute_gradients(0)
        made.apply_gradients(0, got.norm)
        return notes.notes


def groups(rank: int, world: int, store: str, config: RunConfig) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Description and members of this rank's process group on each axis of more than one rank."""
    with trainer(rank, world, store, config, HookList()) as made:
        axes = (made.mesh.tp, made.mesh.cp, made.mesh.pp, made.mesh.dp, made.mesh.dp_cp)
        for axis in axes:
            if axis.group is not None and tuple(dist.get_process_group_ranks(axis.group)) != axis.ranks:
                raise AssertionError(f"{axis.name} has another order than its group")
        return {a.name: (a.group.group_desc, a.ranks) for a in axes if a.group is not None}


class Communication(TorchDispatchMode):
    """Counts every collective that reaches torch.distributed, FSDP2's included: (operation, format)."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[tuple[str, str]] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "c10d":
            tensors = [t for t in tree_leaves(args) if isinstance(t, torch.Tensor)]
            self.seen[func._schema.name.removeprefix("c10d::"), str(tensors[0].dtype)] += 1
        return func(*args, **(kwargs or {}))


def communication(rank: int, world: int, store: str, config: RunConfig) -> Counter[tuple[str, str]]:
    """Collectives of the second step (the first makes FSDP2's buffers)."""
    with trainer(rank, world, store, config, HookList()) as made:
        made.apply_gradients(0, made.compute_gradients(0).norm)
        with Communication() as mode:
            made.apply_gradients(1, made.compute_gradients(1).norm)
        return mode.seen


class Outputs(Hooks):
    """Sizes of stage outputs while their backward runs."""

    def __init__(self) -> None:
        self.sizes: dict[str, int] = {}
        self.executor: Any = None
        self.now: tuple[str, torch.Tensor] | None = None

    def action_begin(self, action):
        if action.kind == "B":
            self.now = (
                str(action),
                self.executor._forwards[action.replica, action.stage, action.micro_batch].output,
            )

    def segment_begin(self, segment):
        if segment.phase == "backward" and self.now:
            name, output = self.now
            self.sizes[name] = output.numel()


def outputs_in_backward(rank: int, world: int, store: str, config: RunConfig) -> dict[str, int]:
    hook = Outputs()
    with trainer(rank, world, store, config, HookList([hook])) as made:
        hook.executor = made.executor
        made.compute_gradients(0)
        return hook.sizes


def whole_run(rank: int, world: int, store: str, config: RunConfig) -> None:
    """Everything `reftrain run` does on a rank."""
    train_rank(config, World(rank, rank, world, f"file://{store}"), lambda _: [])


def evaluated(
    rank: int, world: int, store: str, config: RunConfig, steps: int
) -> tuple[list[float], list[tuple[int, float, int]]]:
    """Losses of all steps, and step, loss and count of tokens of each evaluation between them."""
    seen: list[tuple[int, float, int]] = []

    class Notes(Hooks):
        def evaluation_end(self, evaluation):
            seen.append((evaluation.step, evaluation.loss, evaluation.valid_tokens))

    with trainer(rank, world, store, config, HookList([Notes()])) as made:
        evaluator = Evaluator(made) if config.evaluation.every else None
        losses = []
        for step in range(steps):
            got = made.compute_gradients(step)
            made.apply_gradients(step, got.norm)
            losses.append(got.loss)
            if evaluator:
                evaluator.after_step(step)
    return losses, seen
