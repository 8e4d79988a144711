"""Watches the collectives that this process starts from Python, on Gloo, in the form the flight recorder has them.

torch's own recorder holds them too, but only in the process's memory; here each call is handed on the moment it
is made. Calls are numbered a group like torch's, barriers included.
"""

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist

from reftrain.record.p2p import stack
from reftrain.record.spans import DTYPES

NAMES: Final = {
    "allreduce": "all_reduce", "allreduce_coalesced": "all_reduce", "broadcast": "broadcast", "reduce": "reduce",
    "allgather": "all_gather", "all_gather_single": "all_gather", "_allgather_base": "all_gather",
    "reduce_scatter_single": "all_reduce", "_reduce_scatter_base": "all_reduce", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "alltoall_base": "all_to_all", "all_to_all_single": "all_to_all",
    "gather": "gather", "scatter": "scatter", "barrier": "barrier",
}  # fmt: skip
"""Method of the process group: name under which Gloo records it (its reduce-scatter is an all-reduce)."""

_INPUT_SECOND: Final = {
    "all_gather_single",
    "_allgather_base",
    "reduce_scatter_single",
    "_reduce_scatter_base",
}


Note = Callable[[dict[str, Any]], None]
Made = Callable[[str, Any], None]
Waited = Callable[[Any], None]


@contextmanager
def watch(numbers: Mapping[str, int], note: Note, made: Made, waited: Waited) -> Iterator[None]:
    """Hand every collective to `note` before the call, and its work with the group's name to `made` after it.

    `numbers` are those of the last calls, by group name. `waited` gets every work after its `wait` has returned: on
    Gloo a reduce-scatter never says by itself that it is completed.
    """
    counts = dict(numbers)
    kept = {name: vars(dist.ProcessGroup)[name] for name in NAMES if name in vars(dist.ProcessGroup)}
    for name, original in kept.items():
        setattr(dist.ProcessGroup, name, _watched(name, original, counts, note, made))
    wait = vars(dist.Work)["wait"]
    dist.Work.wait = _waiting(wait, waited)  # type: ignore[method-assign]
    try:
        yield
    finally:
        dist.Work.wait = wait  # type: ignore[method-assign]
        for name, original in kept.items():
            setattr(dist.ProcessGroup, name, original)


def _watched(name: str, original: Any, counts: dict[str, int], note: Note, made: Made) -> Callable[..., Any]:
    def call(group: dist.ProcessGroup, *arguments: Any, **keywords: Any) -> Any:
        number = counts.get(group.group_name, 0) + 1
        counts[group.group_name] = number
        note(_entry(name, group, number, arguments))
        work = original.__get__(group, type(group))(*arguments, **keywords)
        made(group.group_name, work)
        return work

    return call


def _waiting(original: Any, waited: Waited) -> Callable[..., Any]:
    def wait(work: Any, *arguments: Any, **keywords: Any) -> Any:
        result = original.__get__(work, type(work))(*arguments, **keywords)
        waited(work)
        return result

    return wait


def _entry(name: str, group: dist.ProcessGroup, number: int, arguments: tuple[Any, ...]) -> dict[str, Any]:
    sent, got = _tensors(name, group, arguments)
    return {
        "process_group": (group.group_name, group.group_desc or "undefined"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"gloo:{NAMES[name]}",
        "time_created_ns": time.time_ns(),
        "input_sizes": [shape for shape, _ in sent],
        "input_dtypes": [dtype for _, dtype in sent],
        "output_sizes": [shape for shape, _ in got],
        "output_dtypes": [dtype for _, dtype in got],
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": None,
        "timeout_ms": 0,
        "is_p2p": False,
        "frames": stack(sys._getframe(2)),  # noqa: SLF001 - the caller's stack, without building a traceback
    }


_Described = list[tuple[list[int], str]]


def _tensors(
    name: str, group: dist.ProcessGroup, arguments: tuple[Any, ...]
) -> tuple[_Described, _Described]:
    """Shapes and formats of what goes in and what comes out, as Gloo records them."""
    found = [_described(argument) for argument in arguments[:2] if isinstance(argument, torch.Tensor | list)]
    if not found:
        return [], []
    if name in _INPUT_SECOND:
        sent = found[-1]
        if NAMES[name] == "all_reduce":
            return sent, sent
        return sent, [([group.size(), *shape], dtype) for shape, dtype in sent]
    return found[-1], found[0]


def _described(argument: Any) -> _Described:
    tensors = argument if isinstance(argument, list) else [argument]
    flat = [t for item in tensors for t in (item if isinstance(item, list) else [item])]
    return [(list(t.shape), DTYPES.get(t.dtype, str(t.dtype))) for t in flat if isinstance(t, torch.Tensor)]
