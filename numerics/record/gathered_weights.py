"""Records the weights that FSDP2 gathers for a forward, and what a backward adds to their gradients.

A sharded parameter is a DTensor while it rests; in a forward its module holds the gathered one, perhaps in a narrower
format. torch keeps the gathered parameter, so that a hook on it is set once.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from numerics.record.batch_place import Layout
from numerics.record.module_hooks import ModuleHooks
from numerics.record.placement import Placed
from numerics.record.wrapped_models import clean_name

Tell = Callable[[str, Placed], None]
"""Gets a parameter's name and where a tensor of its lies."""


class GatheredWeights:
    """Hooks on the modules that hold sharded parameters of their own; `close` removes them.

    `weight` gets each gathered parameter, `gradient` the addend of each backward to its gradient.
    """

    def __init__(self, model: nn.Module, layout: Layout, weight: Tell, gradient: Tell) -> None:
        self._layout, self._weight, self._gradient = layout, weight, gradient
        self._hooked: dict[int, torch.Tensor] = {}
        self._handles: list[Any] = []
        self._hooks = ModuleHooks()
        for name, module in model.named_modules():
            own = {n: p for n, p in module.named_parameters(recurse=False) if hasattr(p, "placements")}
            if own:
                names = {n: clean_name(f"{name}.{n}") for n in own}
                self._hooks.before(module, self._hook(names, own))

    def _hook(self, names: dict[str, str], resting: dict[str, Any]) -> Callable[..., None]:
        def hook(module: nn.Module, *_given: object) -> None:
            for own, name in names.items():
                held, rests = getattr(module, own), resting[own]
                if not isinstance(held, torch.Tensor) or getattr(held, "placements", ()) == rests.placements:
                    continue  # nobody gathered it
                self._weight(name, self._layout.shared(held))
                if id(held) not in self._hooked and held.is_leaf and held.requires_grad:
                    self._hooked[id(held)] = held
                    self._handles.append(held.register_hook(self._added(name)))  # type: ignore[no-untyped-call]

        return hook

    def _added(self, name: str) -> Callable[[torch.Tensor], None]:
        return lambda grad: self._gradient(name, self._layout.addend(grad))

    def close(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._hooks.close()
        self._handles, self._hooked = [], {}
