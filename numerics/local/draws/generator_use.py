"""Which modules of a model draw random numbers in their own code, not in a module within them, and how many."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from numerics.local.draws.chance import agreement
from numerics.record.wrapped_models import clean_name, in_backward
from numerics.thresholds.local import DRAWN_NUMBER


class GeneratorUse:
    """Hooks on all modules for one forward; `drawing` names modules with own code that moved the CPU's generator.

    `chances` gives by module, where `counts`, the decimal logarithm of the chance that another state of it gives the
    same numbers.
    """

    def __init__(self, *, counts: bool) -> None:
        self._counts = counts
        self.drawing: set[str] = set()
        self.chances: dict[str, float] = {}
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
            with _Draws(self._drew) if self._counts else nullcontext():
                yield
        finally:
            for handle in handles:
                handle.remove()

    def _drew(self, chance: float) -> None:
        if self._within and not in_backward():
            self.chances[self._within[-1]] = self.chances.get(self._within[-1], 0.0) + chance

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


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch's is untyped
    """Reports for each drawing operator the chance, as a logarithm, that another draw gives the same numbers."""

    def __init__(self, tell: Callable[[float], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self._tell = tell

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operator, and report what it drew."""
        made = func(*args, **(kwargs or {}))
        if torch.Tag.nondeterministic_seeded in func.tags:
            first = made[0] if isinstance(made, tuple | list) else made
            count = first.numel() if isinstance(first, torch.Tensor) else 0
            self._tell(count * _each(func, args))
        return made


def _each(func: Any, args: tuple[Any, ...]) -> float:
    """Return the logarithm of the chance that one number is drawn again: of two values, or of many."""
    name = func.overloadpacket.__name__
    if name in {"uniform_", "normal_", "exponential_", "rand", "randn", "rand_like", "randn_like"}:
        return DRAWN_NUMBER
    chance = args[1] if name in {"bernoulli_", "bernoulli", "native_dropout"} and len(args) > 1 else None
    return agreement(chance) if isinstance(chance, float) and 0 < chance < 1 else 0.0
