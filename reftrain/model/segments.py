"""Announces stretches of a rank's own computation to the hooks, forward and, through autograd, backward.

`begin` and `end` are identities. In backward the gradient passes `end` first: there the segment's backward
begins. Without hooks nothing is put into the graph.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from reftrain.parallel.autograd import call
from reftrain.rank.events import Segment
from reftrain.rank.hooks import HookList


class _Mark(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, on_forward: Callable[[], None], on_backward: Callable[[], None], *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.on_backward = on_backward
        on_forward()
        return tuple(t.view_as(t) for t in tensors)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        ctx.on_backward()
        return (None, None, *grads)


class Segments:
    """Marks segments for one run's hooks."""

    def __init__(self, hooks: HookList) -> None:
        self.hooks = hooks

    def begin(self, segment: Segment, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Mark that a segment computes on these tensors from here on."""
        if not self.hooks.hooks:
            return tensors
        back = replace(segment, phase="backward")
        marked: tuple[torch.Tensor, ...] = call(
            _Mark,
            lambda: self.hooks.segment_begin(segment),
            lambda: self.hooks.segment_end(back),
            *tensors,
        )
        return marked

    def end(self, segment: Segment, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Mark that a segment has computed these tensors."""
        if not self.hooks.hooks:
            return tensors
        back = replace(segment, phase="backward")
        marked: tuple[torch.Tensor, ...] = call(
            _Mark,
            lambda: self.hooks.segment_end(segment),
            lambda: self.hooks.segment_begin(back),
            *tensors,
        )
        return marked
