"""Collects the reductions that a configuration declares, each with the ring's chunks and the order of its operands."""

from collections.abc import Sequence

import torch

from numerics.order.order_plan import OrderPlan, Reduction
from reftrain.config.run import RunConfig
from reftrain.layout.declaration import Declaration
from reftrain.layout.grid import Grid, Seat
from reftrain.replay.formats import Formats, formats_of
from reftrain.replay.ring import chunk_bounds

Layout = tuple[tuple[str, int], ...]


class PlanWriter:
    """Collects declared reductions; takes the order of their micro-batches from the recorded plan."""

    def __init__(self, config: RunConfig, recorded: OrderPlan | None, first: int) -> None:
        self.config, self.first = config, first
        self.grid, self.declared = Grid(config.mesh), Declaration(config)
        self.pipeline = self.declared.pipeline
        self.formats: Formats = formats_of(config.numerics.policy)
        self.reductions: list[Reduction] = []
        self._known = {(r.place, r.group): r for r in recorded.reductions} if recorded else {}

    def ranks(self, seats: Sequence[Seat]) -> tuple[int, ...]:
        """Return the global ranks of seats."""
        return tuple(self.grid.rank(seat) for seat in seats)

    def add(
        self,
        label: str,
        axis: str,
        op: str,
        phase: str,
        dtype: torch.dtype,
        seats: Sequence[Seat],
        operands: Sequence[int],
        elements: int,
        *,
        reduction: str = "sum",
        layout: Layout = (),
    ) -> None:
        """Declare a reduction of one group; nothing for a rank alone."""
        if len(seats) == 1:
            return
        group = self.ranks(seats)
        recorded = self._known.get(((phase, axis, op, label), group))
        order = tuple(operands)
        if recorded is not None and sorted(recorded.operands) == sorted(order):
            order = recorded.operands
        size = torch.empty((), dtype=dtype).element_size()
        self.reductions.append(
            Reduction(
                label=label,
                axis=axis,
                op=op,
                phase=phase,
                dtype=str(dtype).removeprefix("torch."),
                group=group,
                operands=order,
                reduction=reduction,
                elements=elements,
                bounds=() if op == "ring" else tuple(chunk_bounds(elements, size, len(group))),
                layout=layout,
                steps=(self.first, self.config.steps),
            )
        )
