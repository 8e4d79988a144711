"""Hooks on a watched model's modules that stay outside of what `torch.compile` compiles.

A recorded run must compute what the run computes otherwise. Traced hooks would cut a compiler's graphs at each module,
so that other kernels run, and the compiler cannot trace what they do. Within a compiled region the hooks therefore
vanish: what enters and leaves the region is recorded, and nothing between. Hooks on the whole model count micro-batches
and are never left out: where a compiled function calls the model, its graph is cut around the call.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from numerics.record.wrapped_models import clean_name

Before = Callable[[nn.Module, tuple[Any, ...], Mapping[str, Any]], None]
"""Gets a module and the arguments of its call, before the call."""

After = Callable[[nn.Module, object, object], None]
"""Gets a module, its positional arguments and its output, after the call."""

_COMPILED = "_orig_mod"
"""Attribute by which what `torch.compile` makes of a module holds the module."""


def recorded_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Return by name without wrappers the innermost module that wrappers hold, or a compiled one around it."""
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if not (name.endswith(_COMPILED) and hasattr(found.get(clean_name(name)), _COMPILED)):
            found[clean_name(name)] = module
    return found


class ModuleHooks:
    """Calls `before` and `after` around modules' calls, until `close`; `always` is for hooks on the whole model."""

    def __init__(self) -> None:
        self._handles: list[Any] = []
        self._compiled: dict[nn.Module, _CompiledCall] = {}

    def before(self, module: nn.Module, hook: Before, *, first: bool = False, always: bool = False) -> None:
        """Call a hook before each call of a module: `first` puts it before existing hooks."""
        call = self._call_of(module)
        if call is not None:
            call.before.append(hook)
            return
        made = uncompiled(hook) if always else _untraced(hook)
        self._handles.append(module.register_forward_pre_hook(made, with_kwargs=True, prepend=first))

    def after(self, module: nn.Module, hook: After, *, always: bool = False) -> None:
        """Call a hook after each call of a module, before existing hooks."""
        call = self._call_of(module)
        if call is not None:
            call.after.append(hook)
            return
        made = uncompiled(hook) if always else _untraced(hook)
        self._handles.append(module.register_forward_hook(made, prepend=True))

    def close(self) -> None:
        """Remove all hooks."""
        for handle in self._handles:
            handle.remove()
        for call in self._compiled.values():
            call.remove()
        self._handles, self._compiled = [], {}

    def _call_of(self, module: nn.Module) -> "_CompiledCall | None":
        """Return the wrapper of the compiled call of a module that `Module.compile` compiled in place."""
        if getattr(module, "_compiled_call_impl", None) is None:
            return None
        if module not in self._compiled:
            self._compiled[module] = _CompiledCall(module)
        return self._compiled[module]


class _CompiledCall:
    """A wrapper of a module's compiled call; the module's own hooks are within the graph."""

    def __init__(self, module: nn.Module) -> None:
        self._module: Any = module
        self._original: Any = self._module._compiled_call_impl  # noqa: SLF001 - torch has no hook outside the graph
        self.before: list[Before] = []
        self.after: list[After] = []
        self._module._compiled_call_impl = self  # noqa: SLF001 - as above

    def __call__(self, *given: Any, **named: Any) -> Any:
        if torch.compiler.is_compiling():  # the graph of a module around this one
            return self._original(*given, **named)
        for hook in self.before:
            hook(self._module, given, named)
        made = self._original(*given, **named)
        for seen in self.after:
            seen(self._module, given, made)
        return made

    def remove(self) -> None:
        """Give the module its compiled call back."""
        self._module._compiled_call_impl = self._original  # noqa: SLF001 - as above


def uncompiled(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that no compiler traces: a graph ends before it and another begins behind it."""
    disable: Any = torch.compiler.disable  # untyped
    made: Callable[..., Any] = disable(hook)
    return made


def _untraced(hook: Callable[..., None]) -> Callable[..., None]:
    """Return a hook that does nothing within a compiled region."""

    def call(*given: Any) -> None:
        if not torch.compiler.is_compiling():
            hook(*given)

    return call
