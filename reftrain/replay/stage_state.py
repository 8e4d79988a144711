"""A stage between the micro-batches of one data-parallel rank: sums in the run's order, cut at reductions."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from reftrain.layout.grid import Seat
from reftrain.replay.formats import Place, StageOrder
from reftrain.replay.gradients import Accumulator

Taken = dict[tuple[int, int, int], dict[Seat, dict[str, Tensor]]]
"""Accumulated gradients by stage, pipeline rank and number of the reduction."""


@dataclass
class StageState:
    """The order of a stage's sums, one accumulator for every rank in lock step, and micro-batches before their turn."""

    order: StageOrder
    accumulators: list[Accumulator]
    waiting: dict[int, list[dict[str, Tensor]]] = field(default_factory=dict)
    done: int = 0

    def accumulate(
        self, seats: Sequence[Seat], at: Place, number: int, local: Sequence[dict[str, Tensor]], taken: Taken
    ) -> None:
        """Add a micro-batch's gradients when its turn in the stage's order has come, and cut at reductions.

        `local` are the weights of the ranks in lock step, which sit on `seats`; what is cut goes into `taken`.
        """
        self.waiting[number] = [
            {name: grad for name, leaf in rank.items() if (grad := leaf.grad) is not None} for rank in local
        ]
        backwards, cuts = self.order.backwards, self.order.reduce_after
        while self.done < len(backwards):
            turn = backwards[self.done]
            if turn not in self.waiting:
                return
            for accumulator, grads in zip(self.accumulators, self.waiting.pop(turn), strict=True):
                accumulator.add(grads)
            before = backwards[: self.done]
            self.done += 1
            if turn in cuts:
                reduction = sum(micro_batch in cuts for micro_batch in before)
                whole = taken.setdefault((*at, reduction), {})
                for seat, accumulator in zip(seats, self.accumulators, strict=True):
                    whole[seat] = accumulator.take()
