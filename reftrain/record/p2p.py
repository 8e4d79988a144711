"""Keeps the sends and receives that Gloo's flight recorder leaves out, newest last, in a ring.

`install` puts a recording wrapper around the process group's own `send` and `recv`, which every way of
sending (`send`, `isend`, `batch_isend_irecv`) goes through. A call counts as completed when its work says so.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from reftrain.record.spans import DTYPES

FRAMES = 12  # innermost Python frames kept of each call


class P2PRing:
    """The last `size` sends and receives of this rank."""

    def __init__(self, size: int, note: Callable[[dict[str, Any]], None] | None = None) -> None:
        self.note = note  # called with every call before it is made
        self._calls: deque[tuple[dict[str, Any], Any]] = deque(maxlen=size)
        self._numbers: dict[str, int] = {}
        self._lock = threading.Lock()

    def add(
        self, group: dist.ProcessGroup, direction: str, tensor: torch.Tensor, peer: int
    ) -> dict[str, Any]:
        """Note a call before it is made; `peer` is a rank within `group`."""
        arrow = f"{group.rank()}{'->' if direction == 'send' else '<-'}{peer}"
        sizes, dtype = [list(tensor.shape)], [DTYPES.get(tensor.dtype, str(tensor.dtype))]
        entry: dict[str, Any] = {
            "process_group": (group.group_name, group.group_desc or "undefined"),
            "op_id": 0,
            "profiling_name": f"gloo:{direction} {arrow}",
            "time_created_ns": time.time_ns(),
            "input_sizes": sizes,
            "output_sizes": sizes,
            "input_dtypes": dtype,
            "output_dtypes": dtype,
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": None,
            "is_p2p": True,
            "frames": stack(sys._getframe(2)),  # noqa: SLF001 - the caller's stack, without building a traceback
        }
        with self._lock:
            number = self._numbers.get(group.group_name, 0) + 1
            self._numbers[group.group_name] = number
            entry["p2p_seq_id"] = number
            self._calls.append((entry, None))
        if self.note is not None:
            self.note(entry)
        return entry

    def issued(self, entry: dict[str, Any], work: Any) -> None:
        """Remember the work of a call that has been made."""
        with self._lock:
            for place in range(len(self._calls) - 1, -1, -1):
                if self._calls[place][0] is entry:
                    self._calls[place] = (entry, work)
                    return

    def entries(self) -> list[dict[str, Any]]:
        """All calls as flight-recorder entries, without `record_id`, `pg_id` and `collective_seq_id`."""
        with self._lock:
            calls = list(self._calls)
            for place, (entry, work) in enumerate(calls):
                if work is not None and work.is_completed():
                    entry["time_discovered_completed_ns"] = time.time_ns()
                    self._calls[place] = (entry, None)  # the tensor may go
        return [_finished(entry) for entry, _ in calls]


def _finished(entry: dict[str, Any]) -> dict[str, Any]:
    done = entry["time_discovered_completed_ns"] is not None
    return {**entry, "state": "completed" if done else "scheduled", "retired": done}


def stack(frame: FrameType | None) -> list[dict[str, Any]]:
    """Innermost frames from `frame` outwards, as the flight recorder has them."""
    frames: list[dict[str, Any]] = []
    while frame is not None and len(frames) < FRAMES:
        code = frame.f_code
        frames.append({"name": code.co_name, "filename": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    return frames


@contextmanager
def install(ring: P2PRing) -> Iterator[None]:
    """Record every send and receive of this process in `ring` while the block runs."""
    kept = {
        name: vars(dist.ProcessGroup)[name] for name in ("send", "recv")
    }  # unbound, to be put back as found
    for name, original in kept.items():
        setattr(dist.ProcessGroup, name, _recording(ring, name, original))
    try:
        yield
    finally:
        for name, original in kept.items():
            setattr(dist.ProcessGroup, name, original)


def _recording(ring: P2PRing, direction: str, original: Any) -> Callable[..., Any]:
    def call(group: dist.ProcessGroup, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        entry = ring.add(group, direction, tensors[0], peer)
        work = original.__get__(group, type(group))(tensors, peer, tag)
        ring.issued(entry, work)
        return work

    return call
