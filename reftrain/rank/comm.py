"""One axis of the mesh seen from one rank: the ranks on it, and every way the trainer communicates over it.

All communication of the trainer's own goes through here (FSDP2's does not), so that one place announces
each call to the hooks with the axis and the name of the tensor it is for.
"""

from collections.abc import Sequence
from typing import Any, Final

import torch
import torch.distributed as dist

from reftrain.rank.events import CallListener, CollectiveCall

# How torch before 2.13 calls the two; looked up at each call, so that whoever wraps the functions sees them.
_GATHER: Final = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
_SCATTER: Final = (
    "reduce_scatter_single" if hasattr(dist, "reduce_scatter_single") else "reduce_scatter_tensor"
)


def gather_flat(out: torch.Tensor, part: torch.Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Gather the flat `part` of every rank of `group` into the flat `out`."""
    getattr(dist, _GATHER)(out, part, group=group)


def reduce_scatter_flat(
    out: torch.Tensor, whole: torch.Tensor, group: dist.ProcessGroup | None = None
) -> None:
    """Sum the flat `whole` over `group` and keep this rank's part in the flat `out`."""
    getattr(dist, _SCATTER)(out, whole, group=group)


def reduction_name(op: Any) -> str:
    """Name of a reduction as plans and traces write it: sum, avg, max, …"""
    return str(getattr(op, "name", op)).lower()


class Axis:
    """The ranks that differ from this one only in one coordinate, and this rank's place among them.

    An axis of size 1 has no process group, and all its operations are the identity.
    """

    def __init__(
        self,
        name: str,
        index: int,
        ranks: Sequence[int],
        group: dist.ProcessGroup | None,
        hooks: CallListener,
    ) -> None:
        self.name = name
        self.index = index
        self.ranks = tuple(ranks)
        self.group = group
        self.hooks = hooks

    @property
    def size(self) -> int:
        """Number of ranks on the axis."""
        return len(self.ranks)

    def all_reduce(
        self, tensor: torch.Tensor, label: str, op: "dist.ReduceOp.RedOpType" = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        """Reduce in place over the axis and return the tensor (contiguous)."""
        if self.size == 1:
            return tensor
        call = CollectiveCall(
            self.name, "all_reduce", label, tensor, self.group, tensor.numel(), reduction=reduction_name(op)
        )
        self.hooks.collective_begin(call)
        dist.all_reduce(tensor, op=op, group=self.group)
        self.hooks.collective_end(call)
        return tensor

    def start_all_reduce(self, tensor: torch.Tensor, label: str) -> "Message":
        """Start to sum in place over the axis (two ranks or more), beside what follows."""
        reduction = reduction_name(dist.ReduceOp.SUM)
        call = CollectiveCall(
            self.name,
            "all_reduce",
            label,
            tensor,
            self.group,
            tensor.numel(),
            reduction=reduction,
            awaited=True,
        )
        self.hooks.collective_begin(call)
        work = dist.all_reduce(tensor, group=self.group, async_op=True)
        self.hooks.collective_end(call)
        if work is None:
            raise AssertionError(f"rank is not on axis {self.name}")
        return Message(work, call, self.hooks)

    def broadcast(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Overwrite the tensor (contiguous) with that of the axis' first rank, and return it."""
        if self.size == 1:
            return tensor
        call = CollectiveCall(self.name, "broadcast", label, tensor, self.group, tensor.numel())
        self.hooks.collective_begin(call)
        dist.broadcast(tensor, src=self.ranks[0], group=self.group)
        self.hooks.collective_end(call)
        return tensor

    def all_gather(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Stack the tensors of all ranks: (…) becomes (size, …)."""
        if self.size == 1:
            return tensor.unsqueeze(0)
        out = tensor.new_empty((self.size, *tensor.shape))
        call = CollectiveCall(self.name, "all_gather", label, tensor, self.group, out.numel(), output=out)
        self.hooks.collective_begin(call)
        gather_flat(out.view(-1), tensor.contiguous().view(-1), self.group)
        self.hooks.collective_end(call)
        return out

    def reduce_scatter(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Sum over the axis and keep this rank's slice: (size, …) becomes (…)."""
        if self.size == 1:
            return tensor.squeeze(0)
        out = tensor.new_empty(tensor.shape[1:])
        call = CollectiveCall(self.name, "reduce_scatter", label, tensor, self.group, out.numel(), output=out)
        self.hooks.collective_begin(call)
        reduce_scatter_flat(out.view(-1), tensor.contiguous().view(-1), self.group)
        self.hooks.collective_end(call)
        return out

    def all_to_all(
        self, rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], label: str
    ) -> torch.Tensor:
        """Send `sent[i]` rows to rank i of the axis, in order, and return the rows that arrive, by sender."""
        if self.size == 1:
            return rows
        rows, out = rows.contiguous(), rows.new_empty((sum(received), *rows.shape[1:]))
        call = CollectiveCall(
            self.name,
            "all_to_all",
            label,
            rows,
            self.group,
            out.numel(),
            output=out,
            splits=(tuple(sent), tuple(received)),
        )
        self.hooks.collective_begin(call)
        dist.all_to_all_single(out, rows, list(received), list(sent), group=self.group)
        self.hooks.collective_end(call)
        return out

    def _message(self, op: str, tensor: torch.Tensor, index: int, label: str) -> CollectiveCall:
        return CollectiveCall(self.name, op, label, tensor, self.group, tensor.numel(), self.ranks[index])

    def exchange(
        self, tensor: torch.Tensor, to_index: int, buffer: torch.Tensor, from_index: int, label: str
    ) -> None:
        """Send a contiguous tensor to one rank and receive from another, as one batch; complete on return."""
        send = self._message("send", tensor, to_index, label)
        receive = self._message("recv", buffer, from_index, label)
        self.hooks.collective_begin(send)
        self.hooks.collective_begin(receive)
        works: list[dist.Work] = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, tensor, self.ranks[to_index], self.group),
                dist.P2POp(dist.irecv, buffer, self.ranks[from_index], self.group),
            ]
        )
        self.hooks.collective_end(receive)
        self.hooks.collective_end(send)
        self.hooks.wait_begin(receive)
        for work in works:
            work.wait()
        self.hooks.wait_end(receive)

    def send(self, tensor: torch.Tensor, index: int, label: str) -> "Message":
        """Start sending a contiguous tensor to the rank at `index` of the axis."""
        return self._issue(self._message("send", tensor, index, label))

    def receive(self, buffer: torch.Tensor, index: int, label: str) -> "Message":
        """Start receiving into `buffer` from the rank at `index` of the axis."""
        return self._issue(self._message("recv", buffer, index, label))

    def _issue(self, call: CollectiveCall) -> "Message":
        self.hooks.collective_begin(call)
        issue = dist.isend if call.op == "send" else dist.irecv
        work = issue(call.tensor, call.peer, group=self.group)
        self.hooks.collective_end(call)
        if work is None:
            raise AssertionError(f"rank is not on axis {self.name}")
        return Message(work, call, self.hooks)


class WideAxis(Axis):
    """An axis that sums in FP32 at least, and rounds the sum once to the tensor's format."""

    def all_reduce(
        self, tensor: torch.Tensor, label: str, op: "dist.ReduceOp.RedOpType" = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        """Reduce over the axis; in place only where the tensor is wide already."""
        return super().all_reduce(tensor.to(_wide(tensor)), label, op).to(tensor.dtype)

    def reduce_scatter(self, tensor: torch.Tensor, label: str) -> torch.Tensor:
        """Sum over the axis and keep this rank's slice."""
        return super().reduce_scatter(tensor.to(_wide(tensor)), label).to(tensor.dtype)


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32) if tensor.is_floating_point() else tensor.dtype


class Message:
    """A message under way."""

    def __init__(self, work: dist.Work, call: CollectiveCall, hooks: CallListener) -> None:
        self._work, self._call, self._hooks = work, call, hooks

    def is_completed(self) -> bool:
        """Return whether the message is known to be complete; on Gloo only a wait makes a send known."""
        return self._work.is_completed()

    def wait(self) -> None:
        """Wait until the message is complete."""
        self._hooks.wait_begin(self._call)
        self._work.wait()
        self._hooks.wait_end(self._call)
