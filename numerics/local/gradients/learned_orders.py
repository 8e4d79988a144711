"""Which order the sums of each group follow, learned from call to call."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

import torch

from numerics.local.gradients.sum_orders import Adder, SumOrder, all_orders
from numerics.thresholds.local import GROUPS_TOLD, MAX_LEARNING_RANKS, MAX_ORDER_WORK


@dataclass
class LearnedOrders:
    """Orders that explain every call so far, by what the calls have in common (operation, format, group).

    `others` counts calls that another order explains than the one learned.
    """

    orders: dict[Hashable, list[SumOrder]] = field(default_factory=dict)
    others: dict[Hashable, int] = field(default_factory=dict)
    names: dict[Hashable, str] = field(default_factory=dict)
    calls: dict[Hashable, int] = field(default_factory=dict)

    def explains(
        self,
        key: Hashable,
        name: str,
        made: Callable[[Adder], torch.Tensor],
        out: torch.Tensor,
        count: int,
        divisor: float = 1.0,
        *,
        only_found: bool = False,
    ) -> bool:
        """Return whether the learned order, or any if none is learned yet, gives `out` in every bit.

        `made` returns the whole result for one way to add the `count` ranks' tensors; `name` names the calls.
        `only_found` says nothing of calls without an order: they are one reading among others.
        """
        if not only_found:
            self.names[key] = name
        known = self.orders.get(key)
        tried = all_orders(scaled=divisor != 1) if known is None else known
        if count > MAX_LEARNING_RANKS or out.numel() * count * count > MAX_ORDER_WORK:
            return False
        fitting = [order for order in tried if order.gives(made, out, count, divisor)]
        if fitting:
            self.orders[key] = fitting
            if count > 1:
                self.names[key] = name
            self.calls[key] = self.calls.get(key, 0) + 1
            return True
        rest = [] if known is None else [o for o in all_orders(scaled=divisor != 1) if o not in known]
        if any(order.gives(made, out, count, divisor) for order in rest):
            self.others[key] = self.others.get(key, 0) + 1
        return False

    def nearest(
        self,
        key: Hashable,
        made: Callable[[Adder], torch.Tensor],
        out: torch.Tensor,
        count: int,
        divisor: float = 1.0,
    ) -> torch.Tensor | None:
        """Return what the learned order gives, by each piece's best start; None where no order is learned."""
        known = self.orders.get(key)
        if not known or out.numel() * count * count > MAX_ORDER_WORK:
            return None
        best = made(known[0].adders(count, divisor)[0]).to(out.dtype)
        for adder in known[0].adders(count, divisor)[1:]:
            other = made(adder).to(out.dtype)
            best = torch.where(best == out, best, torch.where(other == out, other, best))
        return best

    @property
    def said(self) -> tuple[str, ...]:
        """What was learned, in sentences, the first few groups."""
        found = []
        for key, name in self.names.items():
            if key not in self.orders:
                found.append(f"{name}: no order of its sums was found")
                continue
            kinds = [order.words for order in self.orders[key]]
            many = f" (or {len(kinds) - 1} more orders with the same bits)" if len(kinds) > 1 else ""
            broken = f"; {n} calls follow another" if (n := self.others.get(key, 0)) else ""
            found.append(f"{name}: {kinds[0]}{many} explains {self.calls[key]} calls{broken}")
        return tuple(found[:GROUPS_TOLD]) + (
            (f"orders of {len(found) - GROUPS_TOLD} more groups",) if len(found) > GROUPS_TOLD else ()
        )
