"""Asynchronous schedules in one process and float64: gradients at stale weights, by the papers' formulas.

Written from the update rules, with nothing of the tables, the executor or its weight versions: PipeDream's
stage s of p takes micro-batch j with the weights of update max(0, j-(p-s-1)) and then makes update j + 1;
PipeDream-2BW's step t uses the weights of step max(0, t-1).
"""

import torch

from reftrain.config.run import RunConfig
from reftrain.data.batches import Loader
from reftrain.model.decoder import layers_of_stages
from reftrain.train.optimizer import learning_rate
from tests.reftrain import plain


def stage_of(config: RunConfig, name: str) -> int:
    """Stage that holds a parameter."""
    stages = layers_of_stages(config)
    if name.startswith("tok_embeddings"):
        return 0
    if not name.startswith("layers."):
        return len(stages) - 1
    return next(s for s, layers in enumerate(stages) if int(name.split(".")[1]) in layers)


class Weights:
    """All versions of one parameter, and its AdamW (Loshchilov and Hutter 2019, algorithm 2)."""

    def __init__(self, config: RunConfig, name: str, value: torch.Tensor) -> None:
        self.config, self.versions = config.optimizer, [value.detach()]
        self.decay = self.config.weight_decay if value.ndim > 1 else 0.0
        self.first = torch.zeros_like(value)
        self.second = torch.zeros_like(value)

    def update(self, grad: torch.Tensor, rate: float) -> None:
        c, t = self.config, len(self.versions)
        self.first = c.beta1 * self.first + (1 - c.beta1) * grad
        self.second = c.beta2 * self.second + (1 - c.beta2) * grad * grad
        step = self.first / (1 - c.beta1**t) / ((self.second / (1 - c.beta2**t)).sqrt() + c.eps)
        self.versions.append(self.versions[-1] * (1 - rate * self.decay) - rate * step)


def train(config: RunConfig, shapes, *, stale: bool = True):
    """Parameters after config.steps steps; `stale=False` uses the newest weights instead (to tell the two apart)."""
    weights = {n: Weights(config, n, v) for n, v in plain.first_values(config, shapes).items()}
    loader = Loader(config.data, config.model.vocab_size, 1, 0)
    m, p = config.micro_batches, config.mesh.pp
    each = config.pipeline.schedule == "pipedream"
    for step in range(config.steps):
        batches = loader.step(step)
        for update, batch in enumerate([[b] for b in batches] if each else [batches]):
            done = step * m + update if each else step
            used = {}
            for name, w in weights.items():
                lag = (p - stage_of(config, name) - 1 if each else 1) if stale else 0
                used[name] = w.versions[max(0, done - lag)].clone().requires_grad_()
            total, valid = plain.loss_sum(config, used, batch)
            (total / valid).backward()
            for name, w in weights.items():
                w.update(used[name].grad, learning_rate(config.optimizer, step, config.steps))
    return {name: w.versions[-1].numpy() for name, w in weights.items()}
