"""What each backward adds to the gradients of plain parameters, and gradients that are taken and not added."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from numerics.record.batch_place import Layout
from numerics.record.module_hooks import uncompiled
from numerics.record.placement import Placed
from numerics.record.wrapped_models import clean_name


class AddedGradients:
    """Passes to `tell` what a backward computes for each parameter's gradient, until `close`.

    `torch.autograd.grad` computes gradients and adds none: `taken` says, until `restart`, that there were such.
    """

    def __init__(self, model: nn.Module, layout: Layout, tell: Callable[[str, Placed], None]) -> None:
        self._layout, self._tell = layout, tell
        self._pending: set[str] = set()
        self._handles: list[Any] = []
        self._twice = False
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and not hasattr(parameter, "placements"):
                given, added = self._hooks(clean_name(name))
                self._handles.append(parameter.register_hook(uncompiled(given)))  # type: ignore[no-untyped-call]
                self._handles.append(
                    parameter.register_post_accumulate_grad_hook(uncompiled(added))  # type: ignore[no-untyped-call]
                )

    @property
    def taken(self) -> bool:
        """Whether a gradient was computed that no parameter got."""
        return self._twice or bool(self._pending)

    def restart(self) -> None:
        """Begin a step."""
        self._pending, self._twice = set(), False

    def close(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hooks(self, name: str) -> tuple[Callable[[torch.Tensor], None], Callable[[torch.Tensor], None]]:
        def given(grad: torch.Tensor) -> None:
            self._twice = self._twice or name in self._pending
            self._pending.add(name)
            self._tell(name, self._layout.addend(grad))

        def added(_parameter: torch.Tensor) -> None:
            self._pending.discard(name)

        return given, added
