"""Changes the next communication call of this process below the trainer: leaves it out, or gives it another size.

The process group's own methods are what every way of communicating ends in, FSDP2's included; one of them is
replaced until it has been called once. What a flight recorder sees is therefore what really happened.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.distributed as dist

_OLDER = not hasattr(dist.ProcessGroup, "all_gather_single")  # torch before 2.13

METHODS: Final = {
    "all_reduce": "allreduce",
    "all_gather": "_allgather_base" if _OLDER else "all_gather_single",
    "reduce_scatter": "_reduce_scatter_base" if _OLDER else "reduce_scatter_single",
    "all_to_all": "alltoall_base" if _OLDER else "all_to_all_single",
    "broadcast": "broadcast",
    "send": "send",
    "recv": "recv",
}
"""Method of the process group by the operation that `CollectiveCall` names."""


class NoWork:
    """Work of a call that was never made: done at once."""

    def wait(self, timeout: object = None) -> bool:
        """Return at once."""
        del timeout
        return True

    def is_completed(self) -> bool:
        """Whether it is done: always."""
        return True


def skip_next(op: str) -> None:
    """Leave out this process's next call of `op`: its tensors stay as they are, and no peer is informed."""
    _replace_next(op, lambda original, *arguments: NoWork())  # noqa: ARG005


def resize_next(op: str) -> None:
    """Make this process's next call of `op` with tensors of another size than its peers expect.

    Three times as many elements go out, of an all-to-all to every rank; a receive takes a third. The trainer's own
    tensors stay as they are.
    """

    def call(original: Callable[..., Any], *arguments: Any) -> Any:
        return original(*(_resized(op, argument) for argument in arguments))

    _replace_next(op, call)


def _resized(op: str, argument: Any) -> Any:
    if isinstance(argument, list):
        return [_resized(op, item) for item in argument]
    if isinstance(argument, int):  # rows to or from a rank; of other calls a rank
        return 3 * argument if op == "all_to_all" else argument
    if not isinstance(argument, torch.Tensor):
        return argument
    if op == "recv":
        return torch.empty_like(argument.reshape(-1)[: max(argument.numel() // 3, 1)])
    if op == "all_to_all":
        return argument.repeat(3, *(1 for _ in argument.shape[1:]))
    return argument.reshape(-1).repeat(3)


def _replace_next(op: str, call: Callable[..., Any]) -> None:
    name = METHODS[op]
    original = vars(dist.ProcessGroup)[name]

    def once(group: dist.ProcessGroup, *arguments: Any) -> Any:
        setattr(dist.ProcessGroup, name, original)
        return call(original.__get__(group, type(group)), *arguments)

    setattr(dist.ProcessGroup, name, once)
