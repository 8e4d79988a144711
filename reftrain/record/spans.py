"""Puts one annotated span into the profiler's trace for each communication call, with NCCL's argument names.

On Gloo the profiler records no arguments of communication, so tools written for NCCL traces see nothing. A
span begins when the call is made and ends when the call is complete on this rank (for an asynchronous call:
when its `wait` returned). Its name is a placeholder: `export` renames it to `record_param_comms`, which a
Python span must not carry itself (the profiler then looks for C++ debug information and crashes). A span carries
the arguments of the newest form; `export` keeps the arguments of the requested form (`config.trace_forms`).
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
import torch.distributed as dist

from reftrain.record.groups import GroupInfo, Groups

SPAN_NAME: Final = "reftrain::communication"
ARGUMENTS: Final = (
    "Collective name", "dtype", "In msg nelems", "Out msg nelems", "In split size", "Out split size", "Group size",
    "Process Group Name", "Process Group Description", "Process Group Ranks", "Rank", "Src Rank", "Dst Rank",
    "Global rank start", "Global rank stride", "Seq",
)  # fmt: skip
"""Arguments of a communication span that the exporter keeps."""

DTYPES: Final = {
    torch.float32: "Float", torch.float64: "Double", torch.float16: "Half", torch.bfloat16: "BFloat16",
    torch.int64: "Long", torch.int32: "Int", torch.int16: "Short", torch.int8: "Char", torch.uint8: "Byte",
    torch.bool: "Bool",
}  # fmt: skip


class Span:
    """An open span; `end` closes it once."""

    def __init__(self, arguments: dict[str, Any], name: str = SPAN_NAME) -> None:
        self.arguments = arguments
        self._record: Any = torch._C._profiler._RecordFunctionFast(name, keyword_values=arguments)  # noqa: SLF001
        self._record.__enter__()

    def end(self) -> None:
        """Close the span; later calls do nothing."""
        record, self._record = self._record, None
        if record is not None:
            record.__exit__(None, None, None)


class CommSpans:
    """Makes communication spans for the groups of one rank."""

    def __init__(self) -> None:
        self.groups = Groups()

    def collective(self, name: str, group: dist.ProcessGroup | None, sent: torch.Tensor, n_out: int) -> Span:
        """Open the span of a collective: `name` as NCCL traces have it (`allreduce`, `_allgather_base`)."""
        info = self.groups.info(group)
        seq = self.groups.next_collective(info)
        return Span(arguments(name, info, sent.dtype, sent.numel(), n_out, seq))

    def p2p(self, name: str, group: dist.ProcessGroup | None, tensor: torch.Tensor, peer: int) -> Span:
        """Open the span of a `send` to or `recv` from global rank `peer`."""
        info = self.groups.info(group)
        seq = self.groups.next_message(info)
        return Span(message_arguments(name, info, tensor, peer, seq))

    @contextmanager
    def blocking(
        self, name: str, group: dist.ProcessGroup | None, sent: torch.Tensor, n_out: int
    ) -> Iterator[None]:
        """Span of a collective that is complete when the block ends."""
        span = self.collective(name, group, sent, n_out)
        try:
            yield
        finally:
            span.end()


def arguments(
    name: str,
    group: GroupInfo,
    dtype: torch.dtype,
    n_in: int,
    n_out: int,
    seq: int,
    splits: tuple[Sequence[int], Sequence[int]] = ((), ()),
) -> dict[str, Any]:
    """NCCL's arguments for one call; lists are text and written whole. `splits`: rows to each rank, and from each."""
    return {
        "Collective name": name,
        "dtype": DTYPES.get(dtype, str(dtype).removeprefix("torch.")),
        "In msg nelems": n_in,
        "Out msg nelems": n_out,
        "In split size": str(list(splits[0])),
        "Out split size": str(list(splits[1])),
        "Group size": len(group.ranks),
        "Process Group Name": group.name,
        "Process Group Description": group.desc,
        "Process Group Ranks": str(list(group.ranks)),
        "Rank": group.rank,
        "Global rank start": group.ranks[0],
        "Global rank stride": group.stride,
        "Seq": seq,
    }


def message_arguments(
    name: str, group: GroupInfo, tensor: torch.Tensor, peer: int, seq: int
) -> dict[str, Any]:
    """NCCL's arguments for a `send` to or `recv` from global rank `peer`.

    As torch 2.5 and later write them: `Rank` is the peer's rank in the group, a send has no `Src Rank`, and a receive
    no `Dst Rank`.
    """
    values = arguments(name, group, tensor.dtype, tensor.numel(), tensor.numel(), seq)
    end = "Dst Rank" if name == "send" else "Src Rank"
    return {**values, "Rank": group.ranks.index(peer), end: peer}
