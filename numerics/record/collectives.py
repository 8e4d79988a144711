"""Records collectives of any trainer by wrapping functions of torch for a while.

This covers hand-written code, DDP's hooks and FSDP2, which call `torch.distributed.NAME`, and DTensor, which calls
functional collectives. It does not see collectives that compiled code or DDP's reducer issue by themselves. The output
of an asynchronous call is recorded when it has been waited for.
"""

import inspect
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed import distributed_c10d

from numerics.schema import Box

c10d: Final[Any] = distributed_c10d

_DIRECT: Final = {
    "all_reduce": ("all_reduce", "tensor", "tensor"),
    "broadcast": ("broadcast", "tensor", "tensor"),
    "reduce_scatter_tensor": ("reduce_scatter", "input", "output"),
    "reduce_scatter_single": ("reduce_scatter", "input", "output"),
    "reduce_scatter": ("reduce_scatter", "input_list", "output"),
    "all_gather_into_tensor": ("all_gather", "input_tensor", "output_tensor"),
    "all_gather_single": ("all_gather", "input_tensor", "output_tensor"),
    "all_gather": ("all_gather", "tensor", "tensor_list"),
}
"""By name in `torch.distributed`: the operation, and the names of its input and output among the arguments."""

_FUNCTIONAL: Final = {
    "all_reduce": ("all_reduce", ""),
    "reduce_scatter_single": ("reduce_scatter", "scatter_dim"),
    "all_gather_single": ("all_gather", "gather_dim"),
}
"""By name among functional collectives: the operation, and the argument that says which dimension is cut."""


_WORD: Final = re.compile(r"[a-z_]+$")
"""The last word of how torch writes a reduction: "RedOpType.SUM", "sum"."""


@dataclass(frozen=True)
class Call:
    """One tensor that a rank gave to a collective or got from it.

    `kind` is "collective_in" or "collective_out", `label` the operation, the call's number and what it sums by; `value`
    is flat, and fills `box` of a flat tensor of `size` elements: the whole of what is gathered or scattered.
    """

    kind: str
    op: str
    label: str
    group: tuple[int, ...]
    value: torch.Tensor
    size: int
    box: Box

    @property
    def columns(self) -> dict[str, Any]:
        """Its columns of a capture."""
        about = {"kind": self.kind, "axis": "group", "op": self.op, "label": self.label, "group": self.group}
        return {**about, "global_shape": (self.size,), "boxes": [self.box]}


class Collectives:
    """Wraps the functions until `close`. Calls are numbered by operation and group, from 0 after each `restart`."""

    def __init__(self, seen: Callable[[Call], None]) -> None:
        self._seen = seen
        self._count: Counter[tuple[str, tuple[int, ...]]] = Counter()
        self._inside = False
        self._originals: list[tuple[Any, str, Callable[..., Any]]] = []
        for name in _DIRECT:
            self._wrap(dist, name, self._direct)
        for name in _FUNCTIONAL:
            self._wrap(functional, name, self._functional)

    def _wrap(self, home: Any, name: str, wrapped: Callable[..., Callable[..., Any]]) -> None:
        original = getattr(home, name, None)
        if original is not None:
            self._originals.append((home, name, original))
            setattr(home, name, wrapped(name, original))

    def restart(self) -> None:
        """Number calls from 0: a step begins."""
        self._count.clear()

    def close(self) -> None:
        """Put the functions back."""
        for home, name, original in self._originals:
            setattr(home, name, original)
        self._originals = []

    def _direct(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of `torch.distributed` that records input and output around the original."""
        op, given_as, got_as = _DIRECT[name]
        signature = inspect.signature(original)

        def call(*arguments: Any, **named: Any) -> Any:
            if torch.compiler.is_compiling() or self._inside or _coalesced(named.get("group")):
                return original(*arguments, **named)
            said = signature.bind(*arguments, **named).arguments
            group = said.get("group")
            if dist.get_rank(group) < 0:
                return original(*arguments, **named)
            about = self._next(op, tuple(dist.get_process_group_ranks(group)), said.get("op", "sum"))
            self._tell("collective_in", about, said.get(given_as), 0)
            work = self._within(original, arguments, named)

            def done() -> None:
                self._tell("collective_out", about, said.get(got_as), 0)

            if work is None:
                done()
            return None if work is None else _Waited(work, done)

        return call

    def _functional(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """Return a functional collective that records input and output around the original, and waits for it."""
        op, cut = _FUNCTIONAL[name]
        signature = inspect.signature(original)

        def call(*arguments: Any, **named: Any) -> Any:
            said = signature.bind(*arguments, **named).arguments
            group = None if self._inside else _ranks(said.get("group"))
            if group is None or functional._are_we_tracing():  # noqa: SLF001 - as functional collectives ask it
                return original(*arguments, **named)
            about = self._next(op, group, said.get("reduceOp", "sum"))
            dim = said.get(cut, 0)
            self._tell("collective_in", about, said["self"], dim)
            made = self._within(original, arguments, named)
            out = made.wait() if isinstance(made, functional.AsyncCollectiveTensor) else made
            self._tell("collective_out", about, out, dim)
            return made

        return call

    def _within(self, original: Callable[..., Any], arguments: Any, named: Any) -> Any:
        self._inside = True  # one of them may call another
        try:
            return original(*arguments, **named)
        finally:
            self._inside = False

    def _next(self, op: str, group: tuple[int, ...], combines: object) -> tuple[str, str, tuple[int, ...]]:
        """Return operation, label and group of the next call."""
        number = self._count[op, group]
        self._count[op, group] += 1
        summed = _WORD.search(str(combines).lower()) if op in {"all_reduce", "reduce_scatter"} else None
        return op, f"{op}.{number}" + (f".{summed[0]}" if summed else ""), group

    def _tell(self, kind: str, about: tuple[str, str, tuple[int, ...]], found: object, dim: int) -> None:
        """Report a tensor, or the tensors of a list as one, cut along `dim`."""
        op, label, group = about
        if isinstance(found, (list, tuple)):
            found = torch.cat([part.detach().reshape(-1) for part in found])
        if not isinstance(found, torch.Tensor):
            return
        value = found.detach()
        flat = (value.movedim(dim, 0) if value.dim() else value).reshape(-1)
        count = flat.numel()
        part = (kind == "collective_in") == (op == "all_gather") and op in {"all_gather", "reduce_scatter"}
        first = group.index(dist.get_rank()) * count if part else 0
        size = count * len(group) if part else count
        self._seen(Call(kind, op, label, group, flat, size, Box((first,), (count,))))


class _Waited:
    """A wrapper of an asynchronous call that reports when the wait for it has ended."""

    def __init__(self, work: Any, done: Callable[[], None]) -> None:
        self._work, self._done = work, done

    def wait(self, *arguments: Any, **named: Any) -> Any:
        """Wait, then report once."""
        made = self._work.wait(*arguments, **named)
        self._tell()
        return made

    def get_future(self) -> Any:
        """Return the call's future; it reports before the functions that a communication hook of DDP appends to it."""
        return self._work.get_future().then(self._passed)

    def _passed(self, future: Any) -> Any:
        found = future.value()
        self._tell()
        return found

    def _tell(self) -> None:
        done, self._done = self._done, lambda: None
        done()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def _coalesced(group: Any) -> bool:
    """Return whether calls of a group are being collected, to be made later."""
    world: Any = c10d._world  # noqa: SLF001 - there is no public way to ask
    return bool(world.pg_coalesce_state.get(group or dist.group.WORLD))


def _ranks(group: Any) -> tuple[int, ...] | None:
    """Return the global ranks of the group argument of functional collectives; None if torch does not know them."""
    try:
        found: Any = functional._resolve_group(group)  # noqa: SLF001 - there is no public way to ask
        if isinstance(found, str):
            found = c10d._resolve_process_group(found)  # noqa: SLF001 - the name of a group, which a mesh gives
        return tuple(dist.get_process_group_ranks(found))
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None
