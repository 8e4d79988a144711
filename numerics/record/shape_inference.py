"""Forwards that ask a module for shapes only: on fake tensors, or as torch's pipelines make before the first step."""

import functools
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.pipelining import stage

_NAME = "_compute_outputs"
"""What a pipeline stage of torch 2.13 calls to learn shapes; a version without it asks otherwise."""


class ShapeInference:
    """Knows while `active` that a pipeline only asks for shapes; `close` takes the watch off."""

    def __init__(self) -> None:
        self.active = False
        self._base: Any = stage.PipelineStage
        self._original = getattr(self._base, _NAME, None)
        if self._original is not None:
            setattr(self._base, _NAME, self._wrapped(self._original))

    def _wrapped(self, original: Any) -> Any:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            self.active = True
            try:
                return original(*args, **kwargs)
            finally:
                self.active = False

        return call

    def asks(self, *values: object) -> bool:
        """Return whether a forward on these values computes shapes only."""
        fake = (isinstance(v, FakeTensor) or (isinstance(v, torch.Tensor) and v.is_meta) for v in values)
        return self.active or any(fake)

    def close(self) -> None:
        """Put torch's function back."""
        if self._original is not None:
            setattr(self._base, _NAME, self._original)
            self._original = None
