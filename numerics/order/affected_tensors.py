"""Finds the tensors that may differ between two runs because their order plans do; all others must be equal in bits.

A changed reduction in the forward affects everything computed after it. One in the backward affects the gradients
computed after it. One of parameter gradients affects these parameters, the norm and the update. A step's update
affects every later step. A tensor with an unknown name may always differ.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from numerics.order.order_plan import OrderPlan, Reduction
from numerics.order.plan_differences import PlanDifference, differences

_LAYER: Final = re.compile(r"^layers\.(\d{1,6})(?:\.(.*))?$")
_BLOCKS: Final = ("attention_norm", "attention", "ffn_norm", "feed_forward", "")
_PARTS: Final = {"qkv": 0, "w1": 0, "w3": 0, "kv": 1, "wo": 2, "w2": 2}
_ENDS: Final = {"tok_embeddings": 0, "norm": 2, "output": 3, "loss": 4}

Position = tuple[int, int, int, int]


def position(name: str) -> Position | None:
    """Return the place of a module, tensor or label in the forward; None where the name is not understood."""
    name = name.removesuffix(".grad").removesuffix(".recomputed")
    match = _LAYER.match(name)
    if match is None:
        stem = name.split(".")[0]
        return (_ENDS[stem], 0, 0, 0) if stem in _ENDS else None
    rest = (match[2] or "").split(".")
    if rest[0] in {"in", "out"}:
        rest = [""]
    if rest[0] not in _BLOCKS:
        return None
    part = _PARTS.get(rest[1], 3) if len(rest) > 1 else 3
    return 1, int(match[1]), _BLOCKS.index(rest[0]), part


@dataclass(frozen=True)
class AffectedTensors:
    """The tensors that the differences between two plans can change.

    `step` is the first step they concern (None: there is no difference). `forward` is the place of the earliest
    changed reduction in the forward, `backward` of the latest in the backward. `parameters` have a changed reduction
    (None: all). `norm` and `loss` say that the sums of the norm or of the reported loss change, `everything`
    that any tensor may.
    """

    step: int | None
    forward: Position | None
    backward: Position | None
    parameters: frozenset[str] | None
    norm: bool
    loss: bool
    everything: bool

    def may_differ(self, step: int, phase: str, kind: str, tensor: str) -> bool:
        """Return whether a tensor of a step may differ; `phase` and `kind` as in the capture."""
        if self.step is None or step < self.step or phase == "init":
            return False
        if step > self.step:
            return not self._is_reported_only()
        if self.everything:
            return True
        if kind == "metric":
            return self.loss or self.forward is not None
        at = position(tensor)
        if phase == "forward":
            return kind != "input" and self._after_forward(at)
        if phase == "backward":
            return self._in_backward(at)
        if kind == "param_grad":
            name = tensor.removesuffix(".grad")
            return self.parameters is None or name in self.parameters or self._in_backward(at)
        return not self._is_reported_only() if phase == "step" or self.norm else self._changes_gradients()

    def _after_forward(self, at: Position | None) -> bool:
        return self.forward is not None and (at is None or at >= self.forward)

    def _in_backward(self, at: Position | None) -> bool:
        if self.forward is not None:
            return True
        return self.backward is not None and (at is None or at <= self.backward)

    def _changes_gradients(self) -> bool:
        return self.forward is not None or self.backward is not None or self.parameters != frozenset()

    def _is_reported_only(self) -> bool:
        return not (self._changes_gradients() or self.norm or self.everything)


def affected_tensors(left: OrderPlan, right: OrderPlan) -> AffectedTensors:
    """Return which tensors may differ between two runs, by their plans alone."""
    found = [d for d in differences(left, right) if d.label != "valid_tokens"]  # whole numbers add exactly
    reductions = {r.place: r for plan in (left, right) for r in plan.reductions}
    unknown = any(
        plan.local.get("backend", "gloo") != "gloo" for plan in (left, right)
    )  # NCCL tells no order
    if left.local != right.local or unknown:
        return AffectedTensors(0, (0, 0, 0, 0), None, None, norm=True, loss=True, everything=True)
    if not found:
        return AffectedTensors(None, None, None, frozenset(), norm=False, loss=False, everything=False)
    return _affected(found, [reductions[d.phase, d.axis, d.op, d.label] for d in found])


def _affected(found: Sequence[PlanDifference], reductions: Sequence[Reduction]) -> AffectedTensors:
    """Return the places of the changed reductions; `reductions` are the reductions that the differences concern."""
    forward: list[Position] = []
    backward: list[Position] = []
    parameters: set[str] = set()
    everything, all_parameters, norm, loss = False, False, False, False
    for difference, reduction in zip(found, reductions, strict=True):
        at = position(difference.label)
        if difference.label == "grad_norm":
            norm = True
        elif difference.label == "loss":
            loss = True
        elif difference.phase == "reduce":
            parameters |= {name for name, _ in reduction.layout}
            all_parameters |= not reduction.layout
        elif at is None:
            everything = True
        else:
            (forward if difference.phase == "forward" else backward).append(at)
    return AffectedTensors(
        step=min(r.steps[0] for r in reductions),
        forward=min(forward, default=None),
        backward=max(backward, default=None),
        parameters=None if all_parameters else frozenset(parameters),
        norm=norm,
        loss=loss,
        everything=everything,
    )
