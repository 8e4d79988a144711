"""Records collectives of any trainer by wrapping functions of `torch.distributed` for a while.

This covers FSDP2, DDP's hooks and hand-written code, which call `torch.distributed.NAME`; it does not see collectives
that compiled code issues by itself. Of an asynchronous call only the input is recorded: the output is not there yet.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

_FUNCTIONS: Final = {
    "all_reduce": ("all_reduce", 0, 0),
    "reduce_scatter_tensor": ("reduce_scatter", 1, 0),
    "reduce_scatter_single": ("reduce_scatter", 1, 0),
    "all_gather_into_tensor": ("all_gather", 1, 0),
    "all_gather_single": ("all_gather", 1, 0),
}
"""By name of a function: the operation, and the positions of its input and output among the arguments."""

Seen = Callable[[str, str, torch.Tensor, tuple[int, ...], int], None]
"""Receives "collective_in" or "collective_out", the operation, the tensor, the group's ranks, and the call's number."""


class Collectives:
    """Wraps the functions until `close`. Calls are numbered by operation and group, from 0 after each `restart`."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._count: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._inside = False
        self._originals: dict[str, Callable[..., Any]] = {}
        for name in _FUNCTIONS:
            original = getattr(dist, name, None)
            if original is not None:
                self._originals[name] = original
                setattr(dist, name, self._wrapped(name, original))

    def restart(self) -> None:
        """Number calls from 0: a step begins."""
        self._count.clear()

    def close(self) -> None:
        """Put the functions back."""
        for name, original in self._originals.items():
            setattr(dist, name, original)
        self._originals = {}

    def _wrapped(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that records input and output around the original."""
        op, given_at, got_at = _FUNCTIONS[name]
        keywords = ("tensor",) if op == "all_reduce" else ("output_tensor", "input_tensor")
        if op == "reduce_scatter":
            keywords = ("output", "input")

        def call(*arguments: Any, **named: Any) -> Any:
            if self._inside:  # one of them calls another
                return original(*arguments, **named)
            tensors = [
                arguments[n] if n < len(arguments) else named.get(keyword)
                for n, keyword in enumerate(keywords)
            ]
            group = tuple(dist.get_process_group_ranks(named.get("group")))
            number = self._count[op, group]
            self._count[op, group] += 1
            self._tell("collective_in", op, tensors[given_at], group, number)
            self._inside = True
            try:
                work = original(*arguments, **named)
            finally:
                self._inside = False
            if work is None:
                self._tell("collective_out", op, tensors[got_at], group, number)
            return work

        return call

    def _tell(self, kind: str, op: str, tensor: object, group: tuple[int, ...], number: int) -> None:
        if isinstance(tensor, torch.Tensor):
            self._seen(kind, op, tensor, group, number)
