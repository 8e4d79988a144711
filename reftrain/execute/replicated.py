"""Sums of gradients between replicas: ZeRO-0's and HSDP's all-reduces, announced to the hooks, or in buckets.

FSDP2 makes them unit by unit and offers no seam for it, so its module's view of torch.distributed is replaced by one
that announces. With buckets, ZeRO-0 reduces like DistributedDataParallel instead: gradients in the order in which
they become ready, whole parameters until a bucket is full (Li et al. 2020, "PyTorch Distributed", section 3.2.3).
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_collectives

from reftrain.rank.comm import Axis, reduction_name
from reftrain.rank.events import CollectiveCall
from reftrain.rank.hooks import Hooks

MIB = 1 << 20


class AnnouncingDist:
    """torch.distributed as FSDP2 sees it: `all_reduce` is announced for the unit that is reducing."""

    def __init__(self) -> None:
        self._unit: tuple[Hooks, str, str] | None = None

    def __getattr__(self, name: str) -> Any:
        """Return torch's own attribute: all but all_reduce."""
        return getattr(dist, name)

    def reducing(self, hooks: Hooks, axis: str, label: str) -> None:
        """Say which unit reduces from now on, and over which axis its replicas lie."""
        self._unit = hooks, axis, label

    def all_reduce(self, tensor: torch.Tensor, op: Any, group: dist.ProcessGroup) -> dist.Work | None:
        """Sum one unit's gradients over its replicas."""
        if self._unit is None:
            raise AssertionError("a unit reduces that was not announced")
        hooks, axis, label = self._unit
        call = CollectiveCall(
            axis, "all_reduce", label, tensor, group, tensor.numel(), reduction=reduction_name(op)
        )
        hooks.collective_begin(call)
        work: dist.Work | None = dist.all_reduce(tensor, op=op, group=group)
        hooks.collective_end(call)
        return work


ANNOUNCING = AnnouncingDist()
_fsdp_collectives.dist = ANNOUNCING  # type: ignore[assignment, attr-defined]


def buckets(sizes: Sequence[int], most: float) -> list[range]:
    """Cut a sequence of sizes into runs of at most `most` in total; a larger size is a run of its own."""
    found: list[range] = []
    first, held = 0, 0
    for place, size in enumerate(sizes):
        if place > first and held + size > most:
            found.append(range(first, place))
            first, held = place, 0
        held += size
    if sizes:
        found.append(range(first, len(sizes)))
    return found


def sum_in_buckets(gradients: Sequence[torch.Tensor], axis: Axis, bucket_mb: float) -> None:
    """Sum gradients in place over the replicas, `bucket_mb` MiB at a time, in the order given."""
    if axis.size == 1:
        return
    cuts = buckets([grad.numel() * grad.element_size() for grad in gradients], bucket_mb * MIB)
    for number, run in enumerate(cuts):
        own = [gradients[place] for place in run]
        flat = torch.cat([grad.reshape(-1) for grad in own])
        axis.all_reduce(flat, f"bucket{number}.grad")
        for grad, piece in zip(own, torch.split(flat, [grad.numel() for grad in own]), strict=True):
            grad.copy_(piece.view_as(grad))
