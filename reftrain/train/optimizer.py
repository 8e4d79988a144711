"""AdamW on shards with FP32 master weights, and the cosine learning-rate schedule.

With the default policy the shards themselves are FP32 and FSDP2 casts what it gathers, so they are the
masters; with pure BF16 the optimiser keeps its own FP32 copies and writes them back rounded.
"""

import math
from collections.abc import Mapping

import torch

from reftrain.config.run import OptimizerConfig
from reftrain.rank.events import CopyListener
from reftrain.train.offload import HostCopies


def learning_rate(config: OptimizerConfig, step: int, steps: int) -> float:
    """Learning rate of a step: linear warm-up, then half a cosine down to `final_share` of the peak.

    Annealing takes the rate of its first step evenly to 0.
    """
    if config.anneal_steps and step > config.anneal_from:
        left = 1 - min((step - config.anneal_from) / config.anneal_steps, 1.0)
        return left * learning_rate(config, config.anneal_from, steps)
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    end = config.decay_steps or steps
    share = min((step - config.warmup_steps) / max(end - config.warmup_steps, 1), 1.0)
    cosine = 0.5 * (1 + math.cos(math.pi * share))
    return config.learning_rate * (config.final_share + (1 - config.final_share) * cosine)


class AdamW:
    """Decoupled-weight-decay Adam over named local shards.

    Source: Loshchilov and Hutter 2019, algorithm 2. Shards without elements are left out.
    """

    def __init__(
        self,
        config: OptimizerConfig,
        shards: Mapping[str, torch.Tensor],
        decays: Mapping[str, bool],
        copies: CopyListener,
    ) -> None:
        self.config = config
        self.shards = {name: shard for name, shard in shards.items() if shard.numel()}
        self.host = HostCopies(self.shards, copies) if config.offload else None
        self.masters = {
            name: torch.nn.Parameter(shard.float() if shard.dtype == torch.bfloat16 else shard)
            for name, shard in self._stepped.items()
        }
        groups = [
            {
                "params": [self.masters[name] for name in self.shards if decays[name] is decayed],
                "weight_decay": config.weight_decay if decayed else 0.0,
            }
            for decayed in (True, False)
        ]
        self._inner = torch.optim.AdamW(
            [group for group in groups if group["params"]],
            lr=config.learning_rate,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            foreach=config.implementation == "foreach",
            fused=config.implementation == "fused",
        )
        self._make_state()

    def _make_state(self) -> None:
        """Make the moments now, so that a checkpoint can be loaded before the first step."""
        for master in self.masters.values():
            self._inner.state[master] = {
                "step": torch.zeros(
                    (), dtype=torch.float32, device=master.device if self._on_device else None
                ),
                "exp_avg": torch.zeros_like(master),
                "exp_avg_sq": torch.zeros_like(master),
            }

    @property
    def _stepped(self) -> Mapping[str, torch.Tensor]:
        """The weights that the optimiser writes: the shards, or the host's copies of them."""
        return self.shards if self.host is None else self.host.weights

    @property
    def _on_device(self) -> bool:
        return self.config.implementation == "fused"

    def step(self, gradients: Mapping[str, torch.Tensor], rate: float, clip: torch.Tensor | None) -> None:
        """Update all shards with their gradients, scaled by `clip` (1,) when given."""
        if self.host is not None:
            gradients = self.host.take({name: gradients[name] for name in self.masters})
            clip = None if clip is None else clip.cpu()
        for name, master in self.masters.items():
            grad = gradients[name].to(master.dtype)
            master.grad = grad if clip is None else grad * clip.to(grad.dtype)
        for group in self._inner.param_groups:
            group["lr"] = rate
        self._inner.step()
        with torch.no_grad():
            for name, master in self.masters.items():
                master.grad = None
                if master.data_ptr() != self._stepped[name].data_ptr():
                    self._stepped[name].copy_(master)
        if self.host is not None:
            self.host.give()

    def state(self) -> dict[str, dict[str, torch.Tensor]]:
        """Tensors to save, by kind (exp_avg, exp_avg_sq, master) and parameter name, sharing storage."""
        state: dict[str, dict[str, torch.Tensor]] = {"exp_avg": {}, "exp_avg_sq": {}}
        for name, master in self.masters.items():
            for kind, tensors in state.items():
                tensors[name] = self._inner.state[master][kind]
        if any(shard.dtype == torch.bfloat16 for shard in self.shards.values()):
            state["master"] = {name: master.detach() for name, master in self.masters.items()}
        return state

    def set_steps(self, steps: int) -> None:
        """Set the count of steps done, for the bias correction, after the shards were loaded from a checkpoint."""
        if self.host is not None:
            self.host.refresh()
        for master in self.masters.values():
            self._inner.state[master]["step"].fill_(float(steps))


def clip_coefficient(norm: torch.Tensor, greatest: float) -> torch.Tensor | None:
    """Return the factor (1,), at most 1, that brings the norm down to `greatest`; None for no clipping."""
    return (greatest / (norm + 1e-6)).clamp(max=1.0) if greatest else None
