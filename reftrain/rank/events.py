"""Events of a training step on one rank: its stretches of computation, its communication calls, its figures.

The trainer builds these and hands them to the hooks (`reftrain.rank.hooks`). `CallListener` is the part of a hook
that communication needs to know, so that the axes of a mesh do not depend on hooks.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
import torch.distributed as dist

Phase = Literal["forward", "backward", "step"]


@dataclass(frozen=True)
class Segment:
    """A stretch of this rank's own computation.

    `name` is one of qkv, attention, out, ffn, head, encoder, optimizer; `layer` is the global layer number, or -1
    outside a layer; `flops` is the forward work of the segment in floating-point operations (backward:
    twice that).
    """

    name: str
    layer: int
    phase: Phase
    flops: int


@dataclass(frozen=True)
class CollectiveCall:
    """One communication call of the trainer.

    `axis` is tp, cp, pp, dp, dp_cp, ep, edp, kv or embedding; `op` is all_reduce, all_gather, reduce_scatter,
    broadcast, all_to_all, send or recv; `label` names the tensor of the model that the call serves, e.g.
    `layers.3.attention.wo`. `tensor` is this rank's input (for a recv: the buffer to fill); `elements_out` is the
    number of elements that the rank receives; `peer` is the global rank at the other end of a send or recv. `output`
    is the result's buffer where that is not `tensor`; `reduction` is the operation of a reducing call (sum, avg, max,
    …). The result of an `awaited` call is there when the wait for it has ended. `splits` are the rows that an
    all_to_all sends to each rank, and receives from each.
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
    awaited: bool = False
    splits: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())


@dataclass(frozen=True)
class HostCopy:
    """A copy of `nbytes` between the device's memory and the host's; `way` is to_host or to_device."""

    way: Literal["to_host", "to_device"]
    nbytes: int


@dataclass(frozen=True)
class StepMetrics:
    """Figures of one finished step, equal on all ranks but for `step_s` and `peak_bytes`.

    `loss` is in nats per token over the valid tokens; `grad_norm` is the global norm before clipping; `tokens`
    counts the input tokens of the global batch, `valid_tokens` those with a target; `step_s` is in seconds;
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
        """Input tokens of the whole job per second."""
        return self.tokens / self.step_s


@dataclass(frozen=True)
class Evaluation:
    """Loss on held-out data after a step, in nats a token over `valid_tokens`, equal on all ranks; takes `seconds`."""

    step: int
    loss: float
    valid_tokens: int
    seconds: float


class CopyListener(Protocol):
    """Hears of every copy between device and host; `Hooks` is one."""

    def copy_begin(self, copy: HostCopy) -> None:
        """Run before a copy is issued."""

    def copy_end(self, copy: HostCopy) -> None:
        """Run when it has been issued, on a CPU when it is complete."""


class CallListener(Protocol):
    """Hears of every communication call; `Hooks` is one."""

    def collective_begin(self, call: CollectiveCall) -> None:
        """Run before a call is issued."""

    def collective_end(self, call: CollectiveCall) -> None:
        """Run when a blocking call has returned, or an asynchronous one has been issued."""

    def wait_begin(self, call: CollectiveCall) -> None:
        """Run before the rank waits for a call issued earlier."""

    def wait_end(self, call: CollectiveCall) -> None:
        """Run when that call is complete."""
