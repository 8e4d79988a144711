"""Clipping, learning rate and AdamW on every virtual rank's shards."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from reftrain.config.run import OptimizerConfig


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Linear warm-up, then half a cosine down to `final_share` of the peak."""
    if config.anneal_steps and step > config.anneal_from:
        left = 1 - min((step - config.anneal_from) / config.anneal_steps, 1.0)
        return left * learning_rate(config, config.anneal_from, steps)
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    span = max((config.decay_steps or steps) - config.warmup_steps, 1)
    cosine = 0.5 * (1 + math.cos(math.pi * min((step - config.warmup_steps) / span, 1.0)))
    return config.learning_rate * (config.final_share + (1 - config.final_share) * cosine)


def clip_factor(norm: Tensor, greatest: float) -> Tensor | None:
    """Factor (1,) of at most 1 that brings the norm down to `greatest`; None where nothing is clipped."""
    return (greatest / (norm + 1e-6)).clamp(max=1.0) if greatest else None


class ShardOptimizer:
    """torch's AdamW on one rank's shards, on FP32 copies where the shards are BF16; matrices decay, vectors do not."""

    def __init__(
        self,
        config: OptimizerConfig,
        shards: Mapping[str, Tensor],
        matrices: set[str],
        state: Mapping[str, Mapping[str, Tensor]],
        steps: int,
    ) -> None:
        """Make the optimiser of a rank's `shards`; `state` by kind and name is what `steps` steps left."""
        self.shards = {name: shard for name, shard in shards.items() if shard.numel()}
        self.masters = {
            name: torch.nn.Parameter(
                state.get("master", {}).get(name, shard).to(torch.promote_types(shard.dtype, torch.float32))
            )
            for name, shard in self.shards.items()
        }
        decayed = [self.masters[name] for name in self.masters if name in matrices]
        others = [self.masters[name] for name in self.masters if name not in matrices]
        groups = [
            {"params": params, "weight_decay": decay}
            for params, decay in ((decayed, config.weight_decay), (others, 0.0))
            if params
        ]
        self.inner = (
            torch.optim.AdamW(
                groups,
                lr=config.learning_rate,
                betas=(config.beta1, config.beta2),
                eps=config.eps,
                foreach=config.implementation == "foreach",
                fused=config.implementation == "fused",
            )
            if groups
            else None
        )
        if self.inner is not None and state:
            for name, master in self.masters.items():
                moments = {kind: state[kind][name] for kind in ("exp_avg", "exp_avg_sq")}
                self.inner.state[master] = {"step": torch.tensor(float(steps)), **moments}

    def step(self, grads: Mapping[str, Tensor], rate: float, clip: Tensor | None) -> None:
        """Make one step and write the rounded masters back into the shards."""
        if self.inner is None:
            return
        for name, master in self.masters.items():
            grad = grads[name].to(master.dtype)
            master.grad = grad if clip is None else grad * clip.to(grad.dtype)
        for group in self.inner.param_groups:
            group["lr"] = rate
        self.inner.step()
        for name, master in self.masters.items():
            master.grad = None
            if master.data_ptr() != self.shards[name].data_ptr():
                self.shards[name].copy_(master.detach())

    def moments(self) -> dict[str, dict[str, Tensor]]:
        """First and second moments by kind and parameter name; masters where they are apart."""
        if self.inner is None:
            return {}
        state = {
            kind: {name: self.inner.state[master][kind] for name, master in self.masters.items()}
            for kind in ("exp_avg", "exp_avg_sq")
        }
        if any(shard.dtype == torch.bfloat16 for shard in self.shards.values()):
            state["master"] = {name: master.detach() for name, master in self.masters.items()}
        return state
