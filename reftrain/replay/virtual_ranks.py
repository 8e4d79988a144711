"""Virtual ranks in lock step: one autograd graph in which a collective is a function of all ranks' tensors.

A value of the run is a list of local tensors, one for each rank that shares the experts (`ep`), within it each context
rank, and within that each tensor rank. Local
computation is written rank after rank between two collectives, so that autograd visits each rank's nodes in
the order in which that rank's own process would.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from reftrain.replay.observer import Observer
from reftrain.replay.ring import ring_sum

Ranks = list[torch.Tensor]
Exchange = Callable[[Ranks], Ranks]


class _Joint(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, there: Exchange, back: Exchange, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.back = back
        return tuple(there(list(tensors)))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        return (None, None, *ctx.back(list(grads)))


def joint(there: Exchange, back: Exchange, tensors: Ranks) -> Ranks:
    """Apply one exchange between ranks forward, the other to the gradients."""
    out: tuple[torch.Tensor, ...] = _Joint.apply(there, back, *tensors)  # type: ignore[no-untyped-call]
    return list(out)


class VirtualRanks:
    """The tensor and context axes of one pipeline stage, and its data-parallel ranks that share out experts."""

    def __init__(
        self, tp: int, cp: int, ep: int, *, sequence_parallel: bool, sums_wide: bool, observer: Observer
    ) -> None:
        self.tp, self.cp, self.ep, self.observer = tp, cp, ep, observer
        self.sequence_parallel = sequence_parallel and tp > 1
        self.sums_wide = sums_wide

    def __len__(self) -> int:
        return self.tp * self.cp * self.ep

    def groups(self, axis: str) -> list[list[int]]:
        """Placements in a list of ranks that communicate on an axis."""
        places = torch.arange(len(self)).view(self.ep, self.cp, self.tp)
        dim = ("ep", "cp", "tp").index(axis)
        groups: list[list[int]] = places.movedim(dim, -1).flatten(0, 1).tolist()
        return groups

    def _wide(self, tensors: Sequence[torch.Tensor], axis: str) -> Ranks:
        """Summands over tp in the format of the sum."""
        if axis != "tp" or not self.sums_wide:
            return list(tensors)
        return [t.to(torch.promote_types(t.dtype, torch.float32)) for t in tensors]

    def all_reduce(self, axis: str, label: str, tensors: Sequence[torch.Tensor]) -> Ranks:
        """Sum over each group of the axis; every rank gets the sum."""
        out: list[torch.Tensor] = [torch.empty(0)] * len(self)
        groups = self.groups(axis)
        wide = self.observer.collective_in(axis, "all_reduce", label, groups, self._wide(tensors, axis))
        for group in groups:
            total = ring_sum([wide[r] for r in group])
            for r in group:
                out[r] = total.clone()
        out = self.observer.collective_out(axis, "all_reduce", label, groups, out)
        return [total.to(t.dtype) for total, t in zip(out, tensors, strict=True)]

    def reduce_scatter(self, axis: str, label: str, tensors: Sequence[torch.Tensor]) -> Ranks:
        """Sum (size, …) over each group of the axis; each rank gets its slice."""
        out: list[torch.Tensor] = [torch.empty(0)] * len(self)
        groups = self.groups(axis)
        wide = self.observer.collective_in(axis, "reduce_scatter", label, groups, self._wide(tensors, axis))
        for group in groups:
            total = ring_sum([wide[r] for r in group])
            for index, r in enumerate(group):
                out[r] = total[index].clone()
        out = self.observer.collective_out(axis, "reduce_scatter", label, groups, out)
        return [total.to(t.dtype) for total, t in zip(out, tensors, strict=True)]

    def all_gather(self, axis: str, label: str, tensors: Sequence[torch.Tensor]) -> Ranks:
        """Stack the tensors of each group of the axis on every rank."""
        out: list[torch.Tensor] = [torch.empty(0)] * len(self)
        groups = self.groups(axis)
        sent = self.observer.collective_in(axis, "all_gather", label, groups, tensors)
        for group in groups:
            stacked = torch.stack([sent[r] for r in group])
            for r in group:
                out[r] = stacked
        return self.observer.collective_out(axis, "all_gather", label, groups, out)

    def all_to_all(self, label: str, tensors: Ranks, sent: Sequence[Sequence[int]]) -> Ranks:
        """Hand on each rank's rows, `sent[place][i]` of them to rank i of its group of ep; received by sender."""
        out: list[torch.Tensor] = [torch.empty(0)] * len(self)
        groups = self.groups("ep")
        rows = self.observer.collective_in("ep", "all_to_all", label, groups, tensors)
        for group in groups:
            cut = [torch.split(rows[r], list(sent[r])) for r in group]
            for index, r in enumerate(group):
                out[r] = torch.cat([pieces[index] for pieces in cut])
        return self.observer.collective_out("ep", "all_to_all", label, groups, out)

    def _gather_sequence(self, label: str, tensors: Ranks) -> Ranks:
        """(B, S/tp, D) to (B, S, D)."""
        return [torch.cat(stacked.unbind(0), dim=1) for stacked in self.all_gather("tp", label, tensors)]

    def _scatter_sequence(self, label: str, tensors: Ranks) -> Ranks:
        """(B, S, D) to (B, S/tp, D), summed over tp; the buffer holds one destination after the other."""
        pieces = [torch.stack(t.chunk(self.tp, dim=1)) for t in tensors]
        return self.reduce_scatter("tp", label, pieces)

    def enter(self, tensors: Ranks, label: str) -> Ranks:
        """Bring (B, S or S/tp, D) in front of weights with rows that are cut over tp, as (B, S, D)."""
        if self.tp == 1:
            return tensors
        if self.sequence_parallel:
            return joint(
                lambda x: self._gather_sequence(label, x),
                lambda g: self._scatter_sequence(f"{label}.grad", g),
                tensors,
            )
        return joint(
            lambda x: [t.view_as(t) for t in x], lambda g: self.all_reduce("tp", f"{label}.grad", g), tensors
        )

    def leave(self, partials: Ranks, label: str) -> Ranks:
        """Sum the products (B, S, D) of weights with columns that are cut over tp; returns (B, S or S/tp, D)."""
        if self.tp == 1:
            return partials
        if self.sequence_parallel:
            return joint(
                lambda x: self._scatter_sequence(label, x),
                lambda g: self._gather_sequence(f"{label}.grad", g),
                partials,
            )
        return joint(lambda x: self.all_reduce("tp", label, x), list, partials)

    def gather_keys_values(self, keys: Ranks, values: Ranks, label: str) -> tuple[Ranks, Ranks]:
        """(B, H, S/cp, D) keys and values of all context ranks in the sequence's order, (B, H, S, D)."""
        if self.cp == 1:
            return keys, values
        count = len(self)

        def there(both: Ranks) -> Ranks:
            stacked = [torch.stack(pair) for pair in zip(both[:count], both[count:], strict=True)]
            whole = [sequence_order(t) for t in self.all_gather("cp", f"{label}.kv", stacked)]
            return [w[0] for w in whole] + [w[1] for w in whole]

        def back(grads: Ranks) -> Ranks:
            pieces = [
                rank_order(torch.stack(pair), self.cp)
                for pair in zip(grads[:count], grads[count:], strict=True)
            ]
            own = self.reduce_scatter("cp", f"{label}.kv.grad", pieces)
            return [g[0] for g in own] + [g[1] for g in own]

        out = joint(there, back, keys + values)
        return out[:count], out[count:]


def sequence_order(stacked: torch.Tensor) -> torch.Tensor:
    """(cp, …, S/cp, D) with rank i's chunks i and 2·cp-1-i to (…, S, D)."""
    ranks, chunks = len(stacked), stacked.chunk(2, dim=-2)
    return torch.cat(
        [chunks[0][i] for i in range(ranks)] + [chunks[1][i] for i in reversed(range(ranks))], -2
    )


def rank_order(whole: torch.Tensor, ranks: int) -> torch.Tensor:
    """Inverse of `sequence_order`."""
    chunks = whole.chunk(2 * ranks, dim=-2)
    return torch.stack([torch.cat([chunks[i], chunks[2 * ranks - 1 - i]], dim=-2) for i in range(ranks)])
