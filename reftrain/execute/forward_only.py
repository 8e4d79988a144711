"""Runs the forwards of a schedule alone, on one pipeline rank: what evaluates a model between its steps."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from reftrain.execute.messages import BufferPool
from reftrain.execute.pipeline import PipelineExecutor, key_of
from reftrain.execute.sharded_stage import ShardedStage
from reftrain.rank.comm import Axis
from reftrain.rank.hooks import HookList
from reftrain.schedule.actions import Action, Kind, Schedule

_KEPT = {Kind.FORWARD, Kind.SEND_ACTIVATION, Kind.RECV_ACTIVATION}


def forwards_of(schedule: Schedule) -> Schedule:
    """Return the table of a lowered schedule with its forwards and their messages alone, in their order."""
    kept = tuple(tuple(a for a in actions if a.kind in _KEPT) for actions in schedule.actions)
    return replace(schedule, actions=kept)


class ForwardExecutor(PipelineExecutor):
    """Makes forwards without gradients. Its hooks hear nothing: an evaluation is no part of a step."""

    def __init__(
        self, schedule: Schedule, stages: Mapping[int, ShardedStage], down: Axis, up: Axis, pool: BufferPool
    ) -> None:
        super().__init__(forwards_of(schedule), stages, down, up, pool, HookList())

    def _forward(self, action: Action) -> None:
        inputs, buffer = None, None
        if action.stage:
            inputs, buffer = self.mail.take(action.of(Kind.RECV_ACTIVATION))
        with torch.no_grad():
            output = self.stages[action.stage].module(inputs, self._batch(action.micro_batch))
        if self._is_last(action):
            self.loss_sums[action.micro_batch] = output
        elif self.mail.neighbour(action, 1) == self.mail.own:
            self.mail.hand(action.of(Kind.RECV_ACTIVATION, 1), output)
        else:
            self._unsent[key_of(action)] = output
        if buffer is not None:
            self.pool.give(buffer)
