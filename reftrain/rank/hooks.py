"""Hooks: the one narrow interface through which anything watches or disturbs a run.

The recorder (traces, flight recorder, metrics), the planted faults and the emulated computation are all
`Hooks`. They act in the real execution, between the trainer's own statements: a fault sleeps or spins where
a slow rank would, and never writes into a trace. The trainer calls every hook on the rank's main thread,
or, for backward segments, on the thread that runs autograd.

Order of calls in a run:

    setup → built → (step_begin → data_begin → data_end → (action_begin … action_end)* → gradients_end
    → optimizer segment → step_end → [evaluation_begin → evaluation_end])* → close

Within an action (one forward or backward of one micro-batch on one virtual stage) come the *segments*:
stretches of the rank's own computation that contain no collective of the tensor, context or pipeline axis.
`copy_begin` and `copy_end` enclose an offloaded optimiser's copies, within its segment.
`collective_begin` and `collective_end` announce all communication, that of FSDP2 included. A message is begun and
ended when it is issued; `wait_begin` and `wait_end` enclose the trainer's wait for it.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from reftrain.config.run import RunConfig
from reftrain.rank.events import CollectiveCall, Evaluation, HostCopy, Segment, StepMetrics
from reftrain.rank.mesh import Mesh
from reftrain.rank.trainer_view import TrainerView
from reftrain.schedule.actions import Action


@dataclass(frozen=True)
class RunContext:
    """A hook's knowledge of its rank, handed to `Hooks.setup` once all process groups exist."""

    config: RunConfig
    mesh: Mesh
    rank: int
    device: torch.device


class Hooks:
    """Base of all hooks: does nothing. Override what is needed."""

    def setup(self, context: RunContext) -> None:
        """Run once, after the process groups exist and before the model is built."""

    def built(self, trainer: TrainerView) -> None:
        """Run once when stages, schedule and optimiser exist, before a checkpoint is loaded."""

    def step_begin(self, step: int) -> None:
        """Run before the step's data is asked for."""

    def data_begin(self, step: int) -> None:
        """Run before the data loader is asked for the step's batch."""

    def data_end(self, step: int) -> None:
        """Run when the step's batch is there."""

    def action_begin(self, action: Action) -> None:
        """Run before an action of the pipeline schedule is executed."""

    def action_end(self, action: Action) -> None:
        """Run when an action of the pipeline schedule has been executed (its kernels may still run)."""

    def segment_begin(self, segment: Segment) -> None:
        """Run before a stretch of the rank's own computation."""

    def segment_end(self, segment: Segment) -> None:
        """Run after a stretch of the rank's own computation."""

    def collective_begin(self, call: CollectiveCall) -> None:
        """Run before the trainer issues a communication call."""

    def collective_end(self, call: CollectiveCall) -> None:
        """Run when a blocking call has returned, or an asynchronous one has been issued."""

    def wait_begin(self, call: CollectiveCall) -> None:
        """Run before the trainer waits for a message sent or received earlier."""

    def wait_end(self, call: CollectiveCall) -> None:
        """Run when that message is complete."""

    def copy_begin(self, copy: HostCopy) -> None:
        """Run before tensors are copied between device and host."""

    def copy_end(self, copy: HostCopy) -> None:
        """Run when such a copy has been issued, on a CPU when it is complete."""

    def value(self, name: str, value: torch.Tensor) -> None:
        """Run when a value that no module returns is known: logits, counts, loss, norm, clip coefficient."""

    def gradients_end(self, step: int) -> None:
        """Run when the step's gradients are whole, before clipping and the optimiser."""

    def step_end(self, metrics: StepMetrics) -> None:
        """Run when the optimiser has stepped and the figures are known."""

    def evaluation_begin(self, step: int) -> None:
        """Run before held-out data are evaluated after a step."""

    def evaluation_end(self, evaluation: Evaluation) -> None:
        """Run when they are evaluated."""

    def close(self) -> None:
        """Run once at the end, also after an error; the process groups still exist after a good run."""


class HookList(Hooks):
    """Fans every call out to several hooks: begins in the given order, ends in the reverse."""

    def __init__(self, hooks: Sequence[Hooks] = ()) -> None:
        self.hooks = tuple(hooks)

    def setup(self, context: RunContext) -> None:
        """See `Hooks`."""
        for hook in self.hooks:
            hook.setup(context)

    def built(self, trainer: TrainerView) -> None:
        """See `Hooks`."""
        for hook in self.hooks:
            hook.built(trainer)

    def step_begin(self, step: int) -> None:
        """See `Hooks`."""
        for hook in self.hooks:
            hook.step_begin(step)

    def data_begin(self, step: int) -> None:
        """See `Hooks`."""
        for hook in self.hooks:
            hook.data_begin(step)

    def data_end(self, step: int) -> None:
        """See `Hooks`."""
        for hook in reversed(self.hooks):
            hook.data_end(step)

    def action_begin(self, action: Action) -> None:
        """See `Hooks`."""
        for hook in self.hooks:
            hook.action_begin(action)

    def action_end(self, action: Action) -> None:
        """See `Hooks`."""
        for hook in reversed(self.hooks):
            hook.action_end(action)

    def segment_begin(self, segment: Segment) -> None:
        """See `Hooks`."""
        for hook in self.hooks:
            hook.segment_begin(segment)

    def segment_end(self, segment: Segment) -> None:
        """See `Hooks`."""
        for hook in reversed(self.hooks):
            hook.segment_end(segment)

    def collective_begin(self, call: CollectiveCall) -> None:
        """See `Hooks`."""
        for hook in self.hooks:
            hook.collective_begin(call)

    def collective_end(self, call: CollectiveCall) -> None:
        """See `Hooks`."""
        for hook in reversed(self.hooks):
            hook.collective_end(call)

    def wait_begin(self, call: CollectiveCall) -> None:
        """See `Hooks`."""
        for hook in self.hooks:
            hook.wait_begin(call)

    def wait_end(self, call: CollectiveCall) -> None:
        """See `Hooks`."""
        for hook in reversed(self.hooks):
            hook.wait_end(call)

    def copy_begin(self, copy: HostCopy) -> None:
        """See `Hooks`."""
        for hook in self.hooks:
            hook.copy_begin(copy)

    def copy_end(self, copy: HostCopy) -> None:
        """See `Hooks`."""
        for hook in reversed(self.hooks):
            hook.copy_end(copy)

    def value(self, name: str, value: torch.Tensor) -> None:
        """See `Hooks`."""
        for hook in self.hooks:
            hook.value(name, value)

    def gradients_end(self, step: int) -> None:
        """See `Hooks`."""
        for hook in reversed(self.hooks):
            hook.gradients_end(step)

    def step_end(self, metrics: StepMetrics) -> None:
        """See `Hooks`."""
        for hook in reversed(self.hooks):
            hook.step_end(metrics)

    def evaluation_begin(self, step: int) -> None:
        """See `Hooks`."""
        for hook in self.hooks:
            hook.evaluation_begin(step)

    def evaluation_end(self, evaluation: Evaluation) -> None:
        """See `Hooks`."""
        for hook in reversed(self.hooks):
            hook.evaluation_end(evaluation)

    def close(self) -> None:
        """See `Hooks`."""
        for hook in reversed(self.hooks):
            hook.close()

    @contextlib.contextmanager
    def segment(self, segment: Segment) -> Iterator[None]:
        """Announce a segment that autograd does not run (the optimiser)."""
        self.segment_begin(segment)
        yield
        self.segment_end(segment)
