"""Backward through a stage: whole, or split into the part for its input and the later part for its weights.

The split reuses torch's own (`torch.distributed.pipelining._backward`): the input part stops at the nodes
where parameters join the chain and keeps the gradients that arrive there, the weight part goes on from them.
The first stage has no input: all of its backward is the weight part.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import Variable
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight


def backward_through(output: torch.Tensor, grad: torch.Tensor | None) -> None:
    """Run backward from an output with data that may have been released; `grad` is None for a loss.

    `torch.autograd.backward` would compare the shapes of data and gradient; the engine itself needs only
    the graph.
    """
    if grad is None:
        output.backward()  # type: ignore[no-untyped-call]
        return
    Variable._execution_engine.run_backward(  # noqa: SLF001 - the only way, see above
        (output,),
        (grad,),
        keep_graph=False,
        create_graph=False,
        inputs=(),
        allow_unreachable=True,
        accumulate_grad=True,
    )


@dataclass
class SplitBackward:
    """One micro-batch's backward on one stage between its two parts."""

    output: torch.Tensor
    grad: torch.Tensor | None
    inputs: torch.Tensor | None
    _groups: list[dict[str, Any]] = field(default_factory=list)

    def input_part(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Compute the gradient of the stage's input, into `inputs.grad`."""
        if self.inputs is None:
            return
        grads = None if self.grad is None else [self.grad]
        _, self._groups = stage_backward_input([self.output], grads, [self.inputs], iter(list(weights)))

    def weight_part(self, weights: Iterable[torch.nn.Parameter]) -> None:
        """Add the gradients of the stage's weights."""
        if self.inputs is None:
            backward_through(self.output, self.grad)
        else:
            stage_backward_weight(iter(list(weights)), self._groups)
