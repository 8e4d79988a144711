"""Recomputation in a proof: a model's checkpoints call their part once and keep what it computes.

Recomputing changes no value of a sound run. A model that recomputes without the generator's state
(`preserve_rng_state=False`) would repeat its own bug in the proof, and bounds cannot be carried through it.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from unittest.mock import patch

from torch.utils import checkpoint

_PLAIN: Final = "_checkpoint_without_reentrant_generator"
"""Torch's generator behind checkpoints that are not re-entrant: one step before the part is called, one after."""


@contextmanager
def without_recomputation() -> Iterator[None]:
    """Let checkpoints call their part as if they were not there, for a while."""
    with ExitStack() as stack:
        stack.enter_context(patch.object(checkpoint.CheckpointFunction, "apply", _called))
        if hasattr(checkpoint, _PLAIN):
            stack.enter_context(patch.object(checkpoint, _PLAIN, _around_nothing))
        yield


def _called(part: Callable[..., Any], _restores: object, *given: Any) -> Any:
    return part(*given)


def _around_nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield
