"""Executes a lowered schedule on one pipeline rank: computations, messages, reductions, weight versions.

Losses and gradients are keyed by replica, stage and micro-batch, never by position.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from reftrain.execute.backward import SplitBackward, backward_through
from reftrain.execute.carried_tokens import CarriedTokens
from reftrain.execute.encoding import Encoding, Exchange
from reftrain.execute.loss import step_loss
from reftrain.execute.messages import BufferPool, Mailbox
from reftrain.execute.replica_sums import ReplicaSums
from reftrain.execute.sharded_stage import ShardedStage
from reftrain.model.batch import LocalBatch
from reftrain.rank.comm import Axis
from reftrain.rank.hooks import HookList
from reftrain.schedule.actions import ENDS_BACKWARD, RECEIVES, Action, Kind, Schedule

__all__ = ["BufferPool", "PipelineExecutor"]

Key = tuple[int, int, int]
"""Replica, stage, micro-batch."""


@dataclass
class _Forward:
    """State that a forward leaves for its backward; `output` is None where it is to be recomputed."""

    inputs: torch.Tensor | None
    output: torch.Tensor | None
    buffer: torch.Tensor | None


@dataclass
class _Started:
    """A backward under way: where it starts, with which gradient (None: the output is the loss)."""

    forward: _Forward
    output: torch.Tensor
    grad: torch.Tensor | None
    buffer: torch.Tensor | None


def key_of(action: Action) -> Key:
    """Replica, stage and micro-batch of an action."""
    return action.replica, action.stage, action.micro_batch


class PipelineExecutor:
    """Runs a schedule step after step with the stages of this rank."""

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, ShardedStage],
        down: Axis,
        up: Axis,
        pool: BufferPool,
        hooks: HookList,
        replicas: ReplicaSums | None = None,
        encoding: Encoding | None = None,
    ) -> None:
        self.schedule, self.stages, self.hooks, self.pool = schedule, stages, hooks, pool
        self.mail = Mailbox(schedule, down, up, pool)
        self.replicas = replicas or ReplicaSums({})
        self.encoding = encoding
        self.carried = encoding if isinstance(encoding, CarriedTokens) else None
        self.exchange = encoding if isinstance(encoding, Exchange) else None
        self.mails = [self.mail, *([self.carried.mail] if self.carried else [])]
        self.actions = schedule.actions[down.index]
        self._last = {a.stage: a for a in self.actions if a.kind in ENDS_BACKWARD}
        self._split = {a.stage for a in self.actions if a.kind is Kind.BACKWARD_WEIGHT}
        self._reduces = {key_of(a) for a in self.actions if a.kind is Kind.REDUCE_GRADIENT}
        self._recomputed = {key_of(a) for a in self.actions if a.kind is Kind.RECOMPUTE}
        self._batches: Sequence[LocalBatch] = ()
        self._divisor = 1
        self._do: dict[Kind, Callable[[Action], None]] = {
            Kind.FORWARD: self._forward,
            Kind.BACKWARD: self._backward,
            Kind.BACKWARD_INPUT: self._backward_input,
            Kind.BACKWARD_WEIGHT: self._backward_weight,
            Kind.RECOMPUTE: self._recompute,
            Kind.FREE: self._free,
            **dict.fromkeys(RECEIVES, self._receive),
            Kind.SEND_ACTIVATION: self._send_activation,
            Kind.SEND_GRADIENT: self._send_gradient,
            Kind.REDUCE_GRADIENT: self._reduce,
            Kind.SYNC_REPLICAS: self._sync,
        } | self._on_images()
        self._start_step((), 1)

    def _start_step(self, batches: Sequence[LocalBatch], divisor: int) -> None:
        self._batches, self._divisor = batches, divisor
        self._forwards: dict[Key, _Forward] = {}
        self._unsent: dict[Key, torch.Tensor] = {}
        self._halves: dict[Key, tuple[SplitBackward, _Started]] = {}
        self._input_grads: dict[Key, torch.Tensor] = {}
        self.loss_sums: dict[int, torch.Tensor] = {}

    def run(self, batches: Sequence[LocalBatch], divisor: int) -> dict[int, torch.Tensor]:
        """Execute one step; return the sum of token losses of each micro-batch (empty but on the last stage).

        `divisor` is the global count of valid tokens.
        """
        self._start_step(batches, divisor)
        self.execute(self.actions)
        for mail in self.mails:
            mail.reap(wait=True)
        self.replicas.wait()
        return self.loss_sums

    def execute(self, actions: Sequence[Action]) -> None:
        """Execute some of the rank's actions in order."""
        for action in actions:
            self.hooks.action_begin(action)
            self._do[action.kind](action)
            self.hooks.action_end(action)
            for mail in self.mails:
                mail.reap(wait=False)

    def _batch(self, micro_batch: int) -> LocalBatch:
        return self._batches[micro_batch]

    def _tokens(self, micro_batch: int) -> int:
        """Count of valid tokens by which a micro-batch's loss is divided."""
        del micro_batch
        return self._divisor

    def _ends_update(self, action: Action) -> bool:
        """Whether a backward is the last one of its stage before the optimiser steps."""
        return self._last[action.stage] == action

    def _is_last(self, action: Action) -> bool:
        return action.stage + 1 == self.schedule.stages

    def _forward(self, action: Action) -> None:
        inputs, buffer = None, None
        if action.stage:
            tensor, buffer = self.mail.take(action.of(Kind.RECV_ACTIVATION))
            inputs = tensor.detach().requires_grad_()
        batch = self._batch(action.micro_batch)
        if self.carried:
            batch = replace(batch, images=self.carried.arrive(action))
        again = key_of(action) in self._recomputed
        with torch.set_grad_enabled(not again):
            output = self.stages[action.stage].module(inputs, batch)
        self._forwards[key_of(action)] = _Forward(inputs, None if again else output, buffer)
        if self._is_last(action):
            self.loss_sums[action.micro_batch] = output.detach()
        elif self.mail.neighbour(action, 1) == self.mail.own:
            self.mail.hand(action.of(Kind.RECV_ACTIVATION, 1), output.detach())
        else:
            self._unsent[key_of(action)] = output

    def _receive(self, action: Action) -> None:
        for mail in self.mails:
            mail.receive(action)

    def _send_activation(self, action: Action) -> None:
        output = self._unsent.pop(key_of(action))
        releasable = output.grad_fn is not None and action.stage not in self._split
        self.mail.send(action, output.detach(), output if releasable else None)
        if self.carried:
            self.carried.send(action)

    def _send_gradient(self, action: Action) -> None:
        self.mail.send(action, self._input_grads.pop(key_of(action)), None)
        if self.carried:
            self.carried.send(action)

    def _free(self, action: Action) -> None:
        """Ignore the action: a recomputed forward built no graph, so it holds no activations."""
        if self._forwards[key_of(action)].output is not None:
            raise AssertionError(f"{action} frees what nothing recomputes")

    def _recompute(self, action: Action) -> None:
        """Run the forward again once the gradient for its backward has come: its activations are held no longer."""
        self.mail.wait(action.of(Kind.RECV_GRADIENT))
        forward, batch = self._forwards[key_of(action)], self._batch(action.micro_batch)
        if self.carried:
            batch = replace(batch, images=self.carried.held_by(action))
        forward.output = self.stages[action.stage].module(forward.inputs, batch)

    def _start_backward(self, action: Action) -> _Started:
        forward = self._forwards.pop(key_of(action))
        if forward.output is None:
            raise AssertionError(f"{action} has no graph")
        if self._is_last(action):
            return _Started(forward, step_loss(forward.output, self._tokens(action.micro_batch)), None, None)
        grad, buffer = self.mail.take(action.of(Kind.RECV_GRADIENT))
        self.mail.reap(wait=False, arrived=forward.output)
        return _Started(forward, forward.output, grad, buffer)

    def _backward(self, action: Action) -> None:
        reduce = key_of(action) in self._reduces
        self.stages[action.stage].arm(reduce=reduce, last=self._ends_update(action))
        started = self._start_backward(action)
        backward_through(started.output, started.grad)
        self._end_backward(started)
        self._pass_gradient(action, started.forward.inputs)
        if self.carried:
            self.carried.collect(action)

    def _backward_input(self, action: Action) -> None:
        stage = self.stages[action.stage]
        stage.arm(reduce=False, last=False)
        started = self._start_backward(action)
        half = SplitBackward(started.output, started.grad, started.forward.inputs)
        half.input_part(stage.whole_parameters())
        self._halves[key_of(action)] = half, started
        self._pass_gradient(action, started.forward.inputs)

    def _backward_weight(self, action: Action) -> None:
        stage = self.stages[action.stage]
        stage.arm(reduce=False, last=False)
        half, started = self._halves.pop(key_of(action))
        half.weight_part(stage.whole_parameters())
        stage.widen_gradients()
        self._end_backward(started)

    def _end_backward(self, started: _Started) -> None:
        for used in (started.buffer, started.forward.buffer):
            if used is not None:
                self.pool.give(used)

    def _pass_gradient(self, action: Action, inputs: torch.Tensor | None) -> None:
        if inputs is None:
            return
        grad = inputs.grad
        if grad is None:
            raise AssertionError(f"{action} gave its input no gradient")
        if self.mail.neighbour(action, -1) == self.mail.own:
            self.mail.hand(action.of(Kind.RECV_GRADIENT, -1), grad)
        else:
            self._input_grads[key_of(action)] = grad

    def _reduce(self, action: Action) -> None:
        """Reduce explicitly where backwards are split; a whole backward reduces as it runs (`arm`)."""
        if action.stage in self._split:
            last = self._last[action.stage]
            self.stages[action.stage].reduce_now(last=key_of(last) == key_of(action))

    def _sync(self, action: Action) -> None:
        self.replicas.start(action.stage, self.stages[action.stage])

    def _on_images(self) -> dict[Kind, Callable[[Action], None]]:
        """Return what executes the actions of an image encoder."""
        return {
            Kind.ENCODE: self._encode,
            Kind.ENCODE_BACKWARD: self._encode_backward,
            Kind.SHARE_TOKENS: self._share_tokens,
            Kind.GATHER_TOKENS: self._gather_tokens,
        }

    @property
    def _images(self) -> Encoding:
        if self.encoding is None:
            raise AssertionError("a table with an encoder is run by a model with one")
        return self.encoding

    @property
    def _exchange(self) -> Exchange:
        if self.exchange is None:
            raise AssertionError("a table that exchanges tokens is run by a model that does")
        return self.exchange

    def _encode(self, action: Action) -> None:
        self._images.encode(action)

    def _share_tokens(self, action: Action) -> None:
        del action
        tokens = self._exchange.share()
        self._batches = [replace(b, images=t) for b, t in zip(self._batches, tokens, strict=True)]

    def _gather_tokens(self, action: Action) -> None:
        del action
        self._exchange.gather()

    def _encode_backward(self, action: Action) -> None:
        self.stages[action.stage].arm(reduce=key_of(action) in self._reduces, last=self._ends_update(action))
        self._images.backward(action)
