"""One step of a captured run: what its modules got and gave, and the state around it, put together over the ranks."""

from typing import Any

import torch
from torch import nn

from numerics.local.forced_pass import ROOT, ROOT_GRADIENT
from numerics.local.recorded import Reading, RecordedRun
from numerics.schema import RANDOM
from tracekit.errors import InputError

Place = tuple[int, int]
"""Data-parallel index and micro-batch."""


class RecordedStep:
    """A step of a run; `before` is the (step, phase) that recorded the parameters it starts from.

    `parts` counts the ranks that share a data-parallel index: so many parts may a product be cut into.
    """

    def __init__(self, recorded: RecordedRun, model: nn.Module, step: int, before: tuple[int, str]) -> None:
        self.recorded, self.model, self.step, self.before = recorded, model, step, before
        self.parts = recorded.run.capture.world_size // max(len({p[0] for p in recorded.places(step)}), 1)

    def parameter(
        self, name: str, shape: tuple[int, ...] | None, at: tuple[int, str] | None = None
    ) -> torch.Tensor | None:
        """Return a parameter or state of the optimiser as it stood before the step (or `at` another)."""
        step, phase = at or self.before
        for kind in ("param", "optimizer"):
            found = self.recorded.whole(self.recorded.rows(step, phase, kind, name), shape, batch=False)
            if found:
                return found[0].tensor
        return None

    def gradient(self, name: str, shape: tuple[int, ...] | None) -> torch.Tensor | None:
        """Return a parameter's gradient as the optimiser saw it."""
        rows = self.recorded.rows(self.step, "reduce", "param_grad", name)
        found = self.recorded.whole(rows, shape, batch=False)
        return found[0].tensor if found else None

    def added_gradient(self, place: Place, name: str, shape: tuple[int, ...]) -> list[Reading]:
        """Return the readings of what a place's backward added to a parameter's gradient."""
        rows = self.recorded.rows(self.step, "backward", "param_grad_local", name)
        return self.recorded.whole(self.recorded.of_place(rows, place), shape, batch=False)

    def given(self, place: Place, kind: str, name: str) -> torch.Tensor | None:
        """Return a recorded tensor of a place's first forward, whole, of any shape; None where it was not recorded."""
        rows = self.recorded.of_place(self._rows("forward", kind, name), place)
        found = self.recorded.whole(rows, None, batch=True) or self.recorded.whole(rows[:1], None, batch=True)
        return found[0].tensor if rows and found else None

    def random_state(self, place: Place) -> torch.Tensor | None:
        """Return the state of the CPU's generator before a place's forward; None where its ranks had several."""
        rows = self.recorded.of_place(self._rows("forward", "input", f"{RANDOM}cpu"), place)
        if len({int(self.recorded.run.digest[row]) for row in rows}) != 1:
            return None
        return self.recorded.local(rows[0])

    def activation(self, place: Place, name: str, call: int, _: int, shape: tuple[int, ...]) -> list[Reading]:
        """Return the readings of a module's output, of its call number `call` in the forward."""
        rows = self._rows("forward", "activation", name)
        return self.recorded.whole(self.recorded.of_place(rows, place, call), shape, batch=True)

    def activation_gradient(
        self, place: Place, name: str, call: int, calls: int, shape: tuple[int, ...]
    ) -> list[Reading]:
        """Return the readings of the gradient of a module's output, of its call number `call` of `calls`.

        Gradients come in the opposite order. Where the run called a module more often than the model does, all its
        gradients belong to the one output.
        """
        rows = self._rows("backward", "activation_grad", name)
        recorded = self.recorded.calls(rows, place)
        if calls != 1 or recorded <= 1:
            return self.recorded.whole(
                self.recorded.of_place(rows, place, calls - 1 - call), shape, batch=True
            )
        each = [
            self.recorded.whole(self.recorded.of_place(rows, place, number), shape, batch=True)
            for number in range(recorded)
        ]
        if not all(each):
            return []
        total = torch.stack([readings[0].tensor.double() for readings in each]).sum(0)
        return [Reading(total.to(each[0][0].tensor.dtype), f"the sum over {recorded} calls")]

    def _rows(self, phase: str, kind: str, name: str) -> list[int]:
        """Return the rows of a tensor; each stage of a pipeline calls a model of its own, and the last one's counts."""
        rows = self.recorded.rows(self.step, phase, kind, name)
        if name not in {ROOT, ROOT_GRADIENT} or not rows:
            return rows
        pipeline = self.recorded.run["pp"]
        last = max(int(pipeline[row]) for row in rows)
        return [row for row in rows if int(pipeline[row]) == last]

    def inputs(self, place: Place) -> tuple[list[Any], dict[str, Any]]:
        """Return what the model was called with, by position and by name. InputError where that was not recorded."""
        by_name: dict[str, torch.Tensor] = {}
        pipeline = self.recorded.run["pp"]
        for name in self.recorded.names(self.step, "forward", "input"):
            rows = self.recorded.rows(self.step, "forward", "input", name)
            first = min(int(pipeline[row]) for row in rows)
            rows = [r for r in self.recorded.of_place(rows, place) if int(pipeline[r]) == first]
            found = self.recorded.whole(rows, None, batch=True) or self.recorded.whole(
                rows[:1], None, batch=True
            )
            if found and name.startswith("in."):
                by_name[name.removeprefix("in.")] = found[0].tensor
        if not by_name:
            raise InputError(
                f"{self.recorded.run.capture.folder}: step {self.step} holds no values of the model's inputs; capture "
                "with level tensors"
            )
        args = [by_name[n] for n in sorted((n for n in by_name if n.isdigit()), key=int)]
        return args, {n: value for n, value in by_name.items() if not n.isdigit()}
