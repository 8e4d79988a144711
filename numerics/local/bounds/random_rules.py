"""Random numbers on bounded tensors: exact where the run's generator is in its recorded state, unknown elsewhere."""

from typing import Any

import torch

from numerics.local.bounds.bounded import Bounded, exact, now_carried, rule


@rule("bernoulli_", "uniform_", "normal_", "exponential_", "random_")
def _drawn(func: Any, item: Any, *args: Any, **named: Any) -> Any:
    """Draw into a tensor, in its own format: the numbers depend on it."""
    if not isinstance(item, Bounded):
        return func(item, *map(exact, args), **named)
    drawn = torch.empty(item.shape, dtype=item.dtype)
    func(drawn, *map(exact, args), **named)
    error = 0.0 if now_carried().draws else torch.inf
    item.value, item.error = drawn.double(), torch.full_like(item.value, error)
    return item
