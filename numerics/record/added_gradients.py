"""What each backward adds to the gradients of plain parameters, and gradients that are taken and not added."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from numerics.record.batch_place import Layout
from numerics.record.module_hooks import uncompiled
from numerics.record.placement import Placed
from numerics.record.wrapped_models import clean_name
from numerics.schema import HOOKED, TAKEN


class AddedGradients:
    """Passes to `tell` what a backward computes for each parameter's gradient, until `close`.

    `torch.autograd.grad` computes gradients and adds none, and a hook that a trainer registers after `watch` changes
    a gradient after it was recorded: `marks` names both, until `restart`.
    """

    def __init__(self, model: nn.Module, layout: Layout, tell: Callable[[str, Placed], None]) -> None:
        self._layout, self._tell = layout, tell
        self._pending: set[str] = set()
        self._handles: list[Any] = []
        self._twice = False
        self._watched: dict[str, tuple[nn.Parameter, int]] = {}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and not hasattr(parameter, "placements"):
                own = clean_name(name)
                given, added = self._hooks(own)
                self._handles.append(parameter.register_hook(uncompiled(given)))  # type: ignore[no-untyped-call]
                self._watched[own] = parameter, self._handles[-1].id
                self._handles.append(
                    parameter.register_post_accumulate_grad_hook(uncompiled(added))  # type: ignore[no-untyped-call]
                )

    @property
    def marks(self) -> list[str]:
        """What else than a backward makes gradients: gradients that no parameter got, and hooks after our own."""
        behind = [
            f"{HOOKED}{n}.{name}" for name, at in self._watched.items() for n in range(_hooks_behind(*at))
        ]
        return [TAKEN, *behind] if self._twice or self._pending else behind

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


def _hooks_behind(parameter: nn.Parameter, own: int) -> int:
    """Return how many hooks on a parameter run after ours; torch runs them in the order of registration."""
    keys = list(parameter._backward_hooks or ())  # noqa: SLF001 - torch lists them nowhere else
    return len(keys) - keys.index(own) - 1 if own in keys else 0
