"""Hooks of a proof on a module's output, before the module's own ones, as the recorder's are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True, eq=False)
class _OfProof:
    """A hook of a proof."""

    call: Callable[..., Any]

    def __call__(self, *given: Any) -> Any:
        return self.call(*given)


def register_before_own(module: nn.Module, hook: Callable[..., Any]) -> Any:
    """Return the handle of a forward hook that runs before the module's own ones, and behind those registered so.

    The recorder sees what a module's forward returns; hooks of the model then change it in the run and in the proof.
    """
    handle = module.register_forward_hook(_OfProof(hook))
    hooks: Any = module._forward_hooks  # noqa: SLF001 - torch puts a hook first or last
    for key in [key for key, one in hooks.items() if not isinstance(one, _OfProof)]:
        hooks.move_to_end(key)
    return handle
