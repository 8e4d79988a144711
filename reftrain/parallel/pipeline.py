"""Executes a lowered schedule on one pipeline rank: forwards, backwards, messages and gradient reductions.

Messages are asynchronous; receive buffers come from a free list and return to it after the backward that
last reads them. An output that has been sent is released: backward needs only its place in the graph.
Losses and gradients are keyed by micro-batch, never by position.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.autograd import Variable

from reftrain.comm import Axis, Message
from reftrain.hooks import HookList
from reftrain.loss import step_loss
from reftrain.model.batch import LocalBatch
from reftrain.parallel.data import ShardedStage
from reftrain.schedule.actions import RECEIVES, SENDS, Action, Kind, Schedule


@dataclass
class _Forward:
    """What a forward leaves for its backward."""

    inputs: torch.Tensor | None
    output: torch.Tensor
    buffer: torch.Tensor | None


@dataclass
class _Sent:
    """A message under way: the tensor must live, and its graph output may be released, when it has gone."""

    work: Message
    tensor: torch.Tensor
    output: torch.Tensor | None


class BufferPool:
    """Receive buffers of one shape: taken from a free list, made only when it is empty."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.shape, self.dtype, self.device = tuple(shape), dtype, device
        self.made = 0
        self._free: list[torch.Tensor] = []

    def take(self) -> torch.Tensor:
        """Return a buffer that nobody uses."""
        if self._free:
            return self._free.pop()
        self.made += 1
        return torch.empty(self.shape, dtype=self.dtype, device=self.device)

    def give(self, buffer: torch.Tensor) -> None:
        """Put back a buffer that nobody reads any more."""
        self._free.append(buffer)


class PipelineExecutor:
    """Runs a schedule step after step with the stages of this rank.

    `down` carries messages to higher pipeline ranks and `up` to lower ones: the same group on Gloo, two
    groups on NCCL, which would otherwise serialise the two directions and can deadlock.
    """

    def __init__(
        self,
        schedule: Schedule,
        stages: Mapping[int, ShardedStage],
        down: Axis,
        up: Axis,
        pool: BufferPool,
        hooks: HookList,
    ) -> None:
        self.schedule, self.stages, self.down, self.up = schedule, stages, down, up
        self.pool, self.hooks = pool, hooks
        self.actions = schedule.actions[down.index]
        self._reduces = {
            Action(Kind.BACKWARD, a.stage, a.micro_batch)
            for a in self.actions
            if a.kind is Kind.REDUCE_GRADIENT
        }
        self._last = {a.stage: a for a in self.actions if a.kind is Kind.BACKWARD}
        self._batches: Sequence[LocalBatch] = ()
        self._divisor = 1
        self._start_step((), 1)

    def _start_step(self, batches: Sequence[LocalBatch], divisor: int) -> None:
        self._batches, self._divisor = batches, divisor
        self._received: dict[Action, tuple[torch.Tensor, Message]] = {}
        self._handed: dict[Action, torch.Tensor] = {}
        self._forwards: dict[tuple[int, int], _Forward] = {}
        self._input_grads: dict[tuple[int, int], torch.Tensor] = {}
        self._sent: list[_Sent] = []
        self.loss_sums: dict[int, torch.Tensor] = {}

    def run(self, batches: Sequence[LocalBatch], divisor: int) -> dict[int, torch.Tensor]:
        """Execute one step; return the sum of token losses of each micro-batch (empty but on the last stage).

        `divisor` is the global count of valid tokens.
        """
        self._start_step(batches, divisor)
        for action in self.actions:
            self.hooks.action_begin(action)
            self._execute(action)
            self.hooks.action_end(action)
            self._reap(wait=False)
        self._reap(wait=True)
        return self.loss_sums

    def _execute(self, action: Action) -> None:
        if action.kind is Kind.FORWARD:
            self._forward(action)
        elif action.kind is Kind.BACKWARD:
            self._backward(action)
        elif action.kind in RECEIVES:
            self._receive(action)
        elif action.kind in SENDS:
            self._send(action)

    def _receive(self, action: Action) -> None:
        sender = self.schedule.placement[action.stage - (1 if action.kind is Kind.RECV_ACTIVATION else -1)]
        axis = self.down if sender < self.down.index else self.up
        buffer = self.pool.take()
        self._received[action] = buffer, axis.receive(buffer, sender, str(action))

    def _send(self, action: Action) -> None:
        key = action.stage, action.micro_batch
        forward = action.kind is Kind.SEND_ACTIVATION
        receiver = self.schedule.placement[action.stage + (1 if forward else -1)]
        axis = self.down if receiver > self.down.index else self.up
        output = self._forwards[key].output if forward else None
        tensor = (self._input_grads.pop(key) if output is None else output.detach()).contiguous()
        self._sent.append(_Sent(axis.send(tensor, receiver, str(action)), tensor, output))

    def _reap(self, *, wait: bool, arrived: torch.Tensor | None = None) -> None:
        """Release what has been sent: all when waiting, else what is complete or known to have `arrived`."""
        waiting = []
        for sent in self._sent:
            known = arrived is not None and sent.output is arrived
            if not (wait or known or sent.work.is_completed()):
                waiting.append(sent)
                continue
            sent.work.wait()
            if sent.output is not None:
                sent.output.data = sent.output.new_empty(0)
        self._sent = waiting

    def _take(self, action: Action) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Tensor that a message or the neighbour stage on this rank left, and its buffer if it has one."""
        if action in self._handed:
            return self._handed.pop(action), None
        buffer, work = self._received.pop(action)
        work.wait()
        return buffer, buffer

    def _forward(self, action: Action) -> None:
        stage, micro_batch = action.stage, action.micro_batch
        inputs, buffer = None, None
        if stage:
            tensor, buffer = self._take(Action(Kind.RECV_ACTIVATION, stage, micro_batch))
            inputs = tensor.detach().requires_grad_()
        output = self.stages[stage].module(inputs, self._batches[micro_batch])
        self._forwards[stage, micro_batch] = _Forward(inputs, output, buffer)
        if stage + 1 == self.schedule.stages:
            self.loss_sums[micro_batch] = output.detach()
        elif stage + 1 in self.stages:
            self._handed[Action(Kind.RECV_ACTIVATION, stage + 1, micro_batch)] = output.detach()

    def _backward(self, action: Action) -> None:
        stage, key = action.stage, (action.stage, action.micro_batch)
        forward = self._forwards.pop(key)
        self.stages[stage].arm(reduce=action in self._reduces, last=self._last[stage] == action)
        buffer = None
        if stage + 1 == self.schedule.stages:
            step_loss(forward.output, self._divisor).backward()  # type: ignore[no-untyped-call]
        else:
            grad, buffer = self._take(Action(Kind.RECV_GRADIENT, stage, action.micro_batch))
            self._reap(wait=False, arrived=forward.output)
            backward_through(forward.output, grad)
        for used in (buffer, forward.buffer):
            if used is not None:
                self.pool.give(used)
        if forward.inputs is not None:
            self._pass_gradient(stage, key, forward.inputs)

    def _pass_gradient(self, stage: int, key: tuple[int, int], inputs: torch.Tensor) -> None:
        grad = inputs.grad
        if grad is None:
            raise AssertionError(f"stage {stage} gave its input no gradient")
        if stage - 1 in self.stages:
            self._handed[Action(Kind.RECV_GRADIENT, stage - 1, key[1])] = grad
        else:
            self._input_grads[key] = grad


def backward_through(output: torch.Tensor, grad: torch.Tensor) -> None:
    """Run backward from an output whose data may have been released.

    `torch.autograd.backward` would compare the shapes of data and gradient; the engine itself needs only
    the graph.
    """
    Variable._execution_engine.run_backward(  # noqa: SLF001 - the only way, see above
        (output,),
        (grad,),
        keep_graph=False,
        create_graph=False,
        inputs=(),
        allow_unreachable=True,
        accumulate_grad=True,
    )
