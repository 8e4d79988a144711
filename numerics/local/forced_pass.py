"""Runs a model in which the recorded output of each module replaces its own, so that no error reaches the next one.

The output that a module computes from recorded inputs is judged against the recorded output before it is replaced;
gradients are judged and replaced in the same way on the way back.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from dataclasses import replace as dataclass_replace
from typing import Any, Final

import torch
from torch import nn

from numerics.local.bounds import rules  # noqa: F401 - rules register themselves
from numerics.local.bounds.bounded import known
from numerics.local.judgement import Judged, Standing, judge
from numerics.local.own_hooks import register_before_own
from numerics.local.records.recorded import Reading
from numerics.record.side_outputs import depends_on, losses_beside, recorded_name, tensors_beside
from numerics.record.wrapped_models import clean_name, first_tensor

Ask = Callable[[str, int, int, tuple[int, ...]], list[Reading]]
"""Maps a tensor's name, the number of the module's call, how many calls there are, and the shape to readings."""


ROOT: Final = "out"
ROOT_GRADIENT: Final = f"{ROOT}.grad"
"""The whole model's output, and its gradient, from which a backward starts."""


@dataclass(frozen=True)
class Check:
    """One tensor that was judged."""

    tensor: str
    module: str
    phase: str
    judged: Judged


def replace(computed: torch.Tensor, value: torch.Tensor, back: Callable[..., Any]) -> torch.Tensor:
    """Return `value` in place of `computed`; on the way back, `computed` gets what `back` makes of the gradient."""
    out: torch.Tensor = _Replace.apply(computed, value, back)  # type: ignore[no-untyped-call] # torch's is untyped
    return out


class _Replace(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, _computed: torch.Tensor, value: torch.Tensor, back: Callable[..., Any]
    ) -> torch.Tensor:
        """Return the recorded value."""
        ctx.back = back
        return value.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        """Return the recorded gradient."""
        return ctx.back(grad), None, None


class ForcedPass:
    """One forward and backward: `activation` and `gradient` give what was recorded, `checks` holds the judgements."""

    def __init__(self, activation: Ask, gradient: Ask, *, bounds: bool) -> None:
        self._activation, self._gradient, self._bounds = activation, gradient, bounds
        self._calls: Counter[str] = Counter()
        self._beside: dict[str, str] = {}
        self._losses: frozenset[str] = frozenset()
        self._nodes: dict[Any, str] = {}
        self.checks: list[Check] = []

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Judge and replace the outputs of all modules of `model` for a while."""
        handles = [
            register_before_own(module, self._hook(clean_name(name)))
            for name, module in model.named_modules()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, name: str) -> Callable[..., Any]:
        tensor = f"{name}.out" if name else ROOT

        def hook(_module: nn.Module, _given: object, output: Any) -> Any:
            computed = first_tensor(output)
            if computed is None:
                return None
            call = self._calls[tensor]
            self._calls[tensor] += 1
            readings = self._activation(tensor, call, call + 1, tuple(computed.shape))
            judged, recorded = judge(computed, readings)
            self.checks.append(Check(tensor, name, "forward", judged))
            if not computed.is_floating_point():
                return None if recorded is None else replaced(output, computed, recorded)
            value = (
                computed.detach()
                if recorded is None or recorded.shape != computed.shape
                else self._as(recorded, readings)
            )

            def back(grad: torch.Tensor) -> torch.Tensor:
                found, wanted = judge(
                    grad, self._gradient(f"{tensor}.grad", call, self._calls[tensor], tuple(grad.shape))
                )
                if tensor in self._beside:
                    found = _beside_another(found, self._beside[tensor], self._losses)
                self.checks.append(Check(f"{tensor}.grad", name, "backward", found))
                return (
                    grad if wanted is None or wanted.shape != grad.shape else self._as(wanted.to(grad.dtype))
                )

            value = replace(computed, value, back)
            self._nodes[value.grad_fn] = tensor
            return replaced(output, computed, value)

        return hook

    def _as(self, recorded: torch.Tensor, readings: Sequence[Reading] = ()) -> torch.Tensor:
        if not self._bounds:
            return recorded
        return known(recorded, next((r.error for r in readings if r.tensor is recorded), None))

    def run(self, model: nn.Module, state: Mapping[str, torch.Tensor], args: Any, kwargs: Any) -> None:
        """Run forward with the recorded parameters `state`, and backward from the recorded gradient of the output.

        An output of one element (a loss) without such a record starts from 1; no other output starts a backward.
        """
        with self.on(model):
            output = torch.func.functional_call(model, dict(state), tuple(args), kwargs)
        out = first_tensor(output)
        if out is None or not out.requires_grad:
            return
        beside = tensors_beside(model, output)
        sent = {name: self._sent(name, value) for name, value in losses_beside(beside).items()}
        known_all = {name for name, grad in sent.items() if grad is not None and bool(grad.any())}
        self._beside = depends_on({n: v for n, v in beside.items() if n not in known_all}, self._nodes)
        self._losses = frozenset(name for name, value in beside.items() if value.numel() == 1)
        recorded = self._gradient(ROOT_GRADIENT, 0, 1, tuple(out.shape))
        start = recorded[0].tensor.to(out.dtype) if recorded else torch.ones_like(out.detach())
        if recorded or out.numel() == 1:
            # zeros reach the modules that only a loss beside the output reads, whose recorded gradients then go on
            others = {
                name: torch.zeros_like(beside[name])
                if grad is None
                else self._as(grad.to(beside[name].dtype))
                for name, grad in sent.items()
            }
            starts = [self._as(start), *others.values()]
            torch.autograd.backward([out, *(beside[name] for name in others)], starts)

    def _sent(self, name: str, value: torch.Tensor) -> torch.Tensor | None:
        """Return the recorded gradient of a tensor beside the output; None where it is not known for certain."""
        readings = self._gradient(f"{recorded_name(name)}.grad", 0, 1, tuple(value.shape))
        return readings[0].tensor if len(readings) == 1 and not readings[0].how else None


def _beside_another(judged: Judged, beside: str, losses: Collection[str]) -> Judged:
    """Return the judgement of a gradient to which a loss of its own, taken from `beside`, may have added.

    A wrong one is open. `losses` are single numbers: one of them adds something, unless the gradient is right without.
    """
    if judged.standing != Standing.BEYOND:
        return dataclass_replace(judged, beside=beside if beside in losses else "")
    why = (
        f"{beside}, which the model keeps in addition to its output, may enter the loss (as an auxiliary loss does): "
        "no record holds what it adds to this gradient"
    )
    unchecked = dataclass_replace(judged, standing=Standing.UNCHECKED, why=why, beside=beside)
    return dataclass_replace(unchecked, lone="", relation="", factors=None)


def replaced(output: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """Return a module's output with one tensor exchanged; a mapping is changed in place, so it keeps its class."""
    if output is old:
        return new
    if isinstance(output, MutableMapping):
        output[next(k for k, v in output.items() if v is old)] = new
        return output
    if isinstance(output, tuple | list):
        items = [new if item is old else item for item in output]
        return type(output)(*items) if hasattr(output, "_fields") else type(output)(items)
    return output
