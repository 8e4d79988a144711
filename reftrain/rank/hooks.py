"""What may watch or disturb a run: one narrow interface, called at fixed points of the training step.

The recorder (traces, flight recorder, metrics), the planted faults and the emulated computation are all
`Hooks`. They act in the real execution, between the trainer's own statements: a fault sleeps or spins where
a slow rank would, and never writes into a trace. The trainer calls every hook on the rank's main thread,
or, for backward segments, on the thread that runs autograd.

Order of calls in a run:

    setup → built → (step_begin → data_begin → data_end → (action_begin … action_end)* → gradients_end
    → optimizer segment → step_end)* → close

Within an action (one forward or backward of one micro-batch on one virtual stage) come the *segments*:
stretches of the rank's own computation that contain no collective of the tensor, context or pipeline axis.
All communication is announced by `collective_begin` and `collective_end`, FSDP2's gathers and reduce-scatters
too; only the all-reduce between HSDP's replicas is not. A message is begun and ended when it is issued;
where the trainer waits for it, `wait_begin` and `wait_end` say so.
"""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from reftrain.config.run import RunConfig
    from reftrain.rank.mesh import Mesh
    from reftrain.schedule.actions import Action
    from reftrain.train.trainer import Trainer

Phase = Literal["forward", "backward", "step"]


@dataclass(frozen=True)
class RunContext:
    """What a hook may know of its rank: handed to `Hooks.setup` once all process groups exist."""

    config: "RunConfig"
    mesh: "Mesh"
    rank: int
    device: torch.device


@dataclass(frozen=True)
class Segment:
    """A stretch of this rank's own computation.

    `name` is one of qkv, attention, out, ffn, head, optimizer; `layer` is the global layer number, or -1
    outside a layer; `flops` is the forward work of the segment in floating-point operations (backward:
    twice that).
    """

    name: str
    layer: int
    phase: Phase
    flops: int


@dataclass(frozen=True)
class CollectiveCall:
    """One communication call of the trainer: on which axis, what, for which tensor of the model.

    `axis` is tp, cp, pp, dp, dp_cp, kv or embedding; `op` is all_reduce, all_gather, reduce_scatter, send
    or recv; `label` says what for, e.g. `layers.3.attention.wo`; `tensor` is what this rank puts in (or, of a
    recv, where it goes), `elements_out` the count of elements it gets; `peer` is the global rank of the
    other end of a send or recv. `output` is where the result goes if not into `tensor`; `reduction` is what a
    reduce does (sum, avg, max, …).
    """

    axis: str
    op: str
    label: str
    tensor: torch.Tensor
    group: dist.ProcessGroup | None
    elements_out: int
    peer: int | None = None
    output: torch.Tensor | None = None
    reduction: str = "sum"


@dataclass(frozen=True)
class StepMetrics:
    """Figures of one finished step, equal on all ranks but for `step_s` and `peak_bytes`.

    `loss` is nats a token over the valid tokens; `grad_norm` is the global norm before clipping; `tokens`
    counts the input tokens of the global batch, `valid_tokens` those with a target; `step_s` is seconds;
    `mfu` is a share, or None where the device's peak is not known; `peak_bytes` is this rank's peak memory.
    """

    step: int
    loss: float
    grad_norm: float
    learning_rate: float
    tokens: int
    valid_tokens: int
    step_s: float
    mfu: float | None
    peak_bytes: int

    @property
    def tokens_per_s(self) -> float:
        """Input tokens of the whole job a second."""
        return self.tokens / self.step_s


class Hooks:
    """Base of all hooks: does nothing. Override what is needed."""

    def setup(self, context: RunContext) -> None:
        """Run once, after the process groups exist and before the model is built."""

    def built(self, trainer: "Trainer") -> None:
        """Run once when stages, schedule and optimiser exist, before a checkpoint is loaded."""

    def step_begin(self, step: int) -> None:
        """Run before the step's data is asked for."""

    def data_begin(self, step: int) -> None:
        """Run before the data loader is asked for the step's batch."""

    def data_end(self, step: int) -> None:
        """Run when the step's batch is there."""

    def action_begin(self, action: "Action") -> None:
        """Run before an action of the pipeline schedule is executed."""

    def action_end(self, action: "Action") -> None:
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
        """Run when that message has gone or come."""

    def value(self, name: str, value: torch.Tensor) -> None:
        """Run when a named value is there that no module returns: logits, counts, loss, norm, clip coefficient."""

    def gradients_end(self, step: int) -> None:
        """Run when the step's gradients are whole, before clipping and the optimiser."""

    def step_end(self, metrics: StepMetrics) -> None:
        """Run when the optimiser has stepped and the figures are known."""

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

    def built(self, trainer: "Trainer") -> None:
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

    def action_begin(self, action: "Action") -> None:
        """See `Hooks`."""
        for hook in self.hooks:
            hook.action_begin(action)

    def action_end(self, action: "Action") -> None:
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
