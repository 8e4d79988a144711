"""Calls an autograd function; the one place where torch's untyped `apply` meets our types."""

from typing import Any

import torch


def call(function: type[torch.autograd.Function], *arguments: Any) -> Any:
    """Apply `function` to the arguments: one tensor or a tuple of tensors, as its forward returns."""
    return function.apply(*arguments)  # type: ignore[no-untyped-call]
