"""The replay on bounded tensors: every value exact, beside the most that rounding may move it."""

import math
from functools import cached_property

import torch
from torch import Tensor

from numerics.local.bounds.bounded import Bounded, bounded, known
from numerics.thresholds.local import FUNCTION_ROUNDINGS
from reftrain.config.run import OptimizerConfig
from reftrain.layout.grid import Seat
from reftrain.replay.engine import Replay
from reftrain.replay.gradients import Shards, StepResult
from reftrain.replay.observer import Moment
from reftrain.replay.optimizer import clip_factor, learning_rate

_OTHER_KERNEL = 2
"""Roundings of another formula of the update (foreach, fused, by lerp) for each one of the definition."""


class BoundedReplay(Replay):
    """A replay with a `ForcedWriter` with bounds; only the update is written again, by its definition."""

    def apply(self, step: int, result: StepResult) -> float:
        """Bound the update of all shards, and go on with the recorded ones; return the learning rate."""
        optimizer = self.config.optimizer
        self.observer.now = Moment(step, "step")
        wide = torch.tensor(learning_rate(optimizer, step, self.config.steps), dtype=torch.float64)
        shown = self.observer.scalar("learning_rate", bounded(wide, 0.0, torch.float64, FUNCTION_ROUNDINGS))
        rate = float(shown)
        clip = clip_factor(result.norm, optimizer.clip_norm)
        if clip is not None:
            clip = self.observer.scalar("clip", clip)
        made: dict[str, Shards] = {"param": {}, "exp_avg": {}, "exp_avg_sq": {}, "master": {}}
        for seat in self.shards:
            self._update(seat, result.gradients[seat], step, rate, clip, made)
        for seat, named in self.observer.shards("param", "", made["param"]).items():
            for name, value in named.items():
                self.shards[seat][name].copy_(_plain(value))
        narrow = self.formats.parameter == torch.bfloat16
        for kind in ("exp_avg", "exp_avg_sq", *(("master",) if narrow else ())):
            for seat, named in self.observer.shards("optimizer", f".{kind}", made[kind]).items():
                held = self._held.setdefault(seat, {})
                held |= {f"{name}.{kind}": _plain(value) for name, value in named.items()}
        return rate

    @cached_property
    def _held(self) -> dict[Seat, dict[str, Tensor]]:
        """Recorded state of the optimiser after the last step, by seat and "name.kind"."""
        by_seat: dict[Seat, dict[str, Tensor]] = {}
        for kind, shards in self.state.items():
            for seat, named in shards.items():
                by_seat.setdefault(seat, {}).update({f"{name}.{kind}": v for name, v in named.items()})
        return by_seat

    def _update(
        self,
        seat: Seat,
        grads: dict[str, Tensor],
        step: int,
        rate: float,
        clip: Tensor | None,
        made: dict[str, Shards],
    ) -> None:
        """Add the updated shards and moments of a seat to `made`."""
        held = self._held.get(seat, {})
        for shards in made.values():
            shards[seat] = {}
        for name, shard in self.shards[seat].items():
            if not shard.numel():
                made["param"][seat][name] = shard
                continue
            master = held.get(f"{name}.master", shard.to(torch.promote_types(shard.dtype, torch.float32)))
            grad = grads[name].to(master.dtype)
            grad = grad if clip is None else grad * clip.to(grad.dtype)
            zero = torch.zeros_like(master)
            first, second = (held.get(f"{name}.{kind}", zero) for kind in ("exp_avg", "exp_avg_sq"))
            decay = self.config.optimizer.weight_decay if name in self.matrices else 0.0
            new = adamw(self.config.optimizer, master, grad, first, second, step + 1, rate, decay)
            for kind, value in zip(("master", "exp_avg", "exp_avg_sq"), new, strict=True):
                made[kind][seat][name] = value
            made["param"][seat][name] = new[0].to(shard.dtype)


def _plain(value: Tensor) -> Tensor:
    return value.value.to(value.dtype) if isinstance(value, Bounded) else value


def adamw(
    config: OptimizerConfig,
    value: Tensor,
    grad: Tensor,
    first: Tensor,
    second: Tensor,
    step: int,
    rate: float,
    decay: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return parameter and both moments after a step (from 1) of AdamW; Loshchilov and Hutter 2019, algorithm 2.

    Parameter and moments are recorded ones, plain; what is returned is bounded.
    """
    first = known(first) * config.beta1 + grad * (1 - config.beta1)
    second = known(second) * config.beta2 + grad * grad * (1 - config.beta2)
    denominator = second.sqrt() / math.sqrt(1 - config.beta2**step) + config.eps
    update = first / denominator * (rate / (1 - config.beta1**step))
    moved = known(value) * (1 - rate * decay) - update
    return _loose(moved), _loose(first), _loose(second)


def _loose(value: Tensor) -> Tensor:
    """Leave room for other formulas of the same update."""
    return (
        Bounded(value.value, _OTHER_KERNEL * value.error, value.dtype)
        if isinstance(value, Bounded)
        else value
    )
