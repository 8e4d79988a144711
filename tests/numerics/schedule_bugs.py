"""Bugs of pipeline schedules for tests, planted in each rank's process."""

from typing import Any

from reftrain.config.run import RunConfig
from reftrain.execute.replica_sums import ReplicaSums
from reftrain.execute.sharded_stage import ShardedStage
from reftrain.faults.bugs.bug import Patches
from tests.reftrain import workers


def owner_keeps_its_own(patches: Patches, rank: int) -> None:
    """One owner of a stage does not take over the sum over its owners."""

    def wait(self: Any) -> None:
        for pending in self._pending:
            pending.work.wait()
        self._pending.clear()

    if rank == 0:
        patches.set(ReplicaSums, "wait", wait)


def owners_averaged(patches: Patches, _: int) -> None:
    """The sum over a stage's owners is divided by their number."""
    right = ReplicaSums.wait

    def wait(self: Any) -> None:
        grads = [grad for pending in self._pending for grad in pending.grads]
        right(self)
        for grad in grads:
            grad.div_(2)

    patches.set(ReplicaSums, "wait", wait)


def late_weights_doubled(patches: Patches, _: int) -> None:
    """The weight part of a split backward counts twice."""
    right = ShardedStage.widen_gradients

    def widen(self: ShardedStage) -> None:
        for parameter in self.whole_parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(2)
        right(self)

    patches.set(ShardedStage, "widen_gradients", widen)


def late_weights_narrow(patches: Patches, _: int) -> None:
    """The weight parts of several micro-batches are added in the format of the computation."""
    patches.set(ShardedStage, "widen_gradients", lambda _: None)


BUGS = {
    change.__name__: change
    for change in (owner_keeps_its_own, owners_averaged, late_weights_doubled, late_weights_narrow)
}


def wrong_run(rank: int, world: int, store: str, config: RunConfig, name: str) -> None:
    """Everything `reftrain run` does on a rank, with a bug in it."""
    patches = Patches()
    try:
        BUGS[name](patches, rank)
        workers.whole_run(rank, world, store, config)
    finally:
        patches.undo()
