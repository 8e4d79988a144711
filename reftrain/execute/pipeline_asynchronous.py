"""Executes an asynchronous schedule: one table for the whole run, never flushed, that steps by itself.

A rank's list is cut after the optimiser step that ends each training step; what is in flight there stays in
flight. Micro-batches are numbered through the run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from reftrain.execute.pipeline import BufferPool, PipelineExecutor, key_of
from reftrain.execute.sharded_stage import ShardedStage
from reftrain.execute.weight_versions import WeightVersions
from reftrain.model.batch import LocalBatch
from reftrain.rank.comm import Axis
from reftrain.rank.hooks import HookList
from reftrain.schedule.actions import Action, Kind, Schedule
from reftrain.schedule.lower import last_before_steps


@dataclass(frozen=True)
class Fed:
    """Data of one training step: its micro-batches, and of each the valid tokens its update divides by."""

    batches: Sequence[LocalBatch]
    divisors: Sequence[int]


class AsynchronousExecutor(PipelineExecutor):
    """Runs the slice of one training step after the other.

    `feed(step)` loads a step's data when its first micro-batch comes; `update(stage, micro_batch)` makes the
    optimiser step of a stage and drops its gradients.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, ShardedStage],
        axes: tuple[Axis, Axis],
        pool: BufferPool,
        hooks: HookList,
        micro_batches: int,
        feed: Callable[[int], Fed],
        update: Callable[[int, int], None],
    ) -> None:
        super().__init__(schedule, stages, *axes, pool, hooks)
        self.micro_batches, self._feed, self._update = micro_batches, feed, update
        self.versions = WeightVersions(stages)
        self._fed: dict[int, Fed] = {}
        self._ends = {key_of(a) for a in last_before_steps(self.actions)}
        self._do |= {
            Kind.STASH_WEIGHTS: self.versions.stash,
            Kind.USE_WEIGHTS: self.versions.use,
            Kind.DROP_WEIGHTS: self.versions.drop,
            Kind.OPTIMIZER_STEP: self._step,
        }
        last = micro_batches - 1
        self._cuts = [
            slot + 1
            for slot, a in enumerate(self.actions)
            if a.kind is Kind.OPTIMIZER_STEP and a.micro_batch % micro_batches == last
        ]
        self._cuts[-1:] = [len(self.actions)]

    def run_step(self, step: int) -> dict[int, torch.Tensor]:
        """Execute up to the optimiser step that ends a training step; return its micro-batches' loss sums."""
        begin, end = self._cuts[step - 1] if step else 0, self._cuts[step]
        self.execute(self.actions[begin:end])
        self._fed.pop(step, None)
        if end == len(self.actions):
            self.mail.reap(wait=True)
        first = step * self.micro_batches
        own = range(first, first + self.micro_batches)
        return {mb - first: self.loss_sums.pop(mb) for mb in own if mb in self.loss_sums}

    def _data(self, micro_batch: int) -> tuple[Fed, int]:
        step, number = divmod(micro_batch, self.micro_batches)
        if step not in self._fed:
            self._fed[step] = self._feed(step)
        return self._fed[step], number

    def _batch(self, micro_batch: int) -> LocalBatch:
        fed, number = self._data(micro_batch)
        return fed.batches[number]

    def _tokens(self, micro_batch: int) -> int:
        fed, number = self._data(micro_batch)
        return fed.divisors[number]

    def _ends_update(self, action: Action) -> bool:
        return key_of(action) in self._ends

    def _forward(self, action: Action) -> None:
        with self.versions.computing(action):
            super()._forward(action)

    def _backward(self, action: Action) -> None:
        with self.versions.computing(action):
            super()._backward(action)

    def _step(self, action: Action) -> None:
        self.versions.before_step(action.stage)
        self._update(action.stage, action.micro_batch)
        self.versions.after_step(action.stage)
