"""Sums of gradients over the replicas of a stage in a bidirectional pipeline, beside the computation."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from reftrain.execute.sharded_stage import ShardedStage
from reftrain.rank.comm import Axis, Message
from reftrain.rank.mesh import Mesh
from reftrain.schedule.actions import ENCODER, Schedule


def replica_axes(schedule: Schedule, mesh: Mesh) -> dict[int, Axis]:
    """Make the axis of the owners of every stage that this rank shares with others.

    Every stage has a group of its own: the ranks of two stages start their sums in different orders.
    """
    axes = {}
    for stage in range(ENCODER, schedule.stages):
        owners = sorted(set(schedule.owners(stage)))
        if mesh.pp.index in owners and len(owners) > 1:
            axes[stage] = mesh.subgroup(f"replicas_{stage}", [mesh.pp.ranks[r] for r in owners])
    return axes


@dataclass
class _Pending:
    work: Message
    flat: torch.Tensor
    grads: list[torch.Tensor]


class ReplicaSums:
    """Starts the sums where the table says, and ends them before the gradients are used."""

    def __init__(self, axes: Mapping[int, Axis]) -> None:
        self.axes = axes
        self._pending: list[_Pending] = []

    def start(self, number: int, stage: ShardedStage) -> None:
        """Start the sum of a stage's gradients; a stage that only this rank holds needs none.

        Where the replica here got no micro-batch it adds zero.
        """
        axis = self.axes.get(number)
        if axis is None:
            return
        if not stage.local_gradients():
            stage.zero_gradients()
        grads = [grad for grad in stage.local_gradients().values() if grad.numel()]
        flat = torch.cat([grad.reshape(-1) for grad in grads])
        self._pending.append(_Pending(axis.start_all_reduce(flat, f"stage{number}.grad"), flat, grads))

    def wait(self) -> None:
        """End all sums and put them in the gradients' place."""
        for pending in self._pending:
            pending.work.wait()
            pieces = torch.split(pending.flat, [grad.numel() for grad in pending.grads])
            for grad, piece in zip(pending.grads, pieces, strict=True):
                grad.copy_(piece.view_as(grad))
        self._pending.clear()
