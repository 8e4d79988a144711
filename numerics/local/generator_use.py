"""Which modules of a model draw random numbers in their own code, not in a module within them."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from numerics.record.wrapped_models import clean_name


def in_backward() -> bool:
    """Return whether autograd runs a backward in this thread."""
    return torch._C._current_graph_task_id() != -1  # noqa: SLF001 - there is no public way to ask


class GeneratorUse:
    """Hooks on all modules for one forward; `drawing` names those during whose own code the CPU's generator moved."""

    def __init__(self) -> None:
        self.drawing: set[str] = set()
        self._within: list[str] = []
        self._last = torch.get_rng_state()

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Follow the generator through the modules of `model` for a while."""
        self._last = torch.get_rng_state()
        handles: list[Any] = []
        for name, module in model.named_modules():
            clean = clean_name(name)
            handles.append(module.register_forward_pre_hook(partial(self._enters, clean)))
            handles.append(module.register_forward_hook(self._leaves))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _enters(self, name: str, *_: object) -> None:
        if not in_backward():  # a forward that is computed again may stop within a module
            self._look()
            self._within.append(name)

    def _leaves(self, *_: object) -> None:
        if not in_backward():
            self._look()
            self._within.pop()

    def _look(self) -> None:
        now = torch.get_rng_state()
        if self._within and not torch.equal(now, self._last):
            self.drawing.add(self._within[-1])
        self._last = now
