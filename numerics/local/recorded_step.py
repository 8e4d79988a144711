"""One step of a captured run: what its modules got and gave, and the state around it, put together over the ranks."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from numerics.local.evaluation_modes import evaluated, in_modes
from numerics.local.forced_pass import ROOT, ROOT_GRADIENT
from numerics.local.records.recorded import Reading, RecordedRun, summed
from numerics.local.records.shared_parameters import expert_modules, other_names
from numerics.record.call_arguments import call_of
from numerics.schema import AUTOCAST, BUFFER, CALL, RANDOM, TARGET, parse_boxes
from numerics.thresholds.reading import MAX_EXTENT
from tracekit.text import whole_number

_NARROW: Final = {"bfloat16": torch.bfloat16, "float16": torch.float16}

Place = tuple[int, int]
"""Data-parallel index and micro-batch."""


class RecordedStep:
    """A step of a run; `before` is the (step, phase) that recorded the parameters it starts from.

    `parts` counts the ranks that share a data-parallel index: a product may be cut into as many parts. `experts` are
    modules with parameters on some data-parallel ranks only, computed from all ranks' tokens. `ties` are other names.
    """

    def __init__(self, recorded: RecordedRun, model: nn.Module, step: int) -> None:
        self.recorded, self.model, self.step = recorded, model, step
        self.goes_on_from = recorded.restored.get(step, step)  # as the start of this step
        at_start = step, "init"
        known = step > 0 and bool(recorded.names(*at_start, "param"))
        self.before = at_start if known else recorded.state_before(self.goes_on_from)
        self.parts = recorded.run.capture.world_size // max(len({p[0] for p in recorded.places(step)}), 1)
        self.experts = expert_modules(recorded, model)
        self.ties = other_names(model)

    def parameter(
        self, name: str, shape: tuple[int, ...] | None, at: tuple[int, str] | None = None
    ) -> torch.Tensor | None:
        """Return a parameter or state of the optimiser as it was before the step (or `at` another)."""
        found = self._held("param", name, shape, at or self.before)
        return self._held("optimizer", name, shape, at or self.last_update()) if found is None else found

    def _held(
        self, kind: str, name: str, shape: tuple[int, ...] | None, at: tuple[int, str]
    ) -> torch.Tensor | None:
        rows = self._owned(self.recorded.rows(*at, kind, name), kind, name)
        found = self.recorded.whole(rows, shape, batch=False)
        return found[0].tensor if found else None

    def _owned(self, rows: list[int], kind: str, name: str) -> list[int]:
        """Return those of `rows` that ranks hold which step the parameter, where others hold whole copies of it too.

        With ZeRO-1 by parameters one rank has the gradient and steps; the others get the result after the record.
        """
        run = self.recorded.run
        parameter = name if kind == "param" else name.rpartition(".")[0]
        stepped = self._digests((self.step, "reduce"), "param_grad", f"{parameter}.grad").keys()
        mine = [row for row in rows if int(run["rank"][row]) in stepped]
        return mine if mine and len({int(run["boxes"][row]) for row in rows}) == 1 else rows

    @property
    def stepped_from(self) -> tuple[int, str]:
        """The (step, phase) of the parameters that the optimiser stepped: a trainer may change them after a forward."""
        changed = bool(self.recorded.names(self.step, "reduce", "param"))
        return (self.step, "reduce") if changed else self.before

    def before_update(self, name: str, shape: tuple[int, ...] | None) -> torch.Tensor | None:
        """Return a parameter as the optimiser stepped it, or the optimiser's state as it was."""
        found = self._held("param", name, shape, self.stepped_from)
        return self.parameter(name, shape) if found is None else found

    def last_update(self, step: int | None = None) -> tuple[int, str]:
        """Return the (step, phase) of the last update before this step, which a trainer may skip, or of the start.

        Where the trainer went back, it is the last one before that step, unless `step` asks for another.
        """
        steps = range((self.goes_on_from if step is None else step) - 1, -1, -1)
        done = (s for s in steps if self.recorded.names(s, "step", "optimizer"))
        last = next(done, -1)
        return last, "step" if last >= 0 else "init"

    def gathered(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Return a weight as it was gathered for the forward; None if it was not gathered or not recorded."""
        rows = self.recorded.rows(self.step, "forward", "param", name)
        found = self.recorded.whole(rows, shape, batch=False)
        return found[0].tensor if found else None

    def computed_with(self, name: str, shape: tuple[int, ...]) -> torch.Tensor | None:
        """Return a weight as the step computed with it: as it was gathered, else as it was before."""
        gathered = self.gathered(name, shape)
        return self.parameter(name, shape) if gathered is None else gathered

    @contextmanager
    def modes(self, place: Place) -> Iterator[None]:
        """Let the model's modules train or evaluate for a while as they did in a place's forward."""
        with in_modes(self.model, evaluated(self.recorded, self.step, place)):
            yield

    @contextmanager
    def casting(self, place: Place) -> Iterator[None]:
        """Cast by itself for a while, as the run's forward did."""
        with ExitStack() as stack:
            for name in self.recorded.names(self.step, "forward", "input"):
                if not name.startswith(AUTOCAST):
                    continue
                rows = self.recorded.of_place(self._rows("forward", "input", name), place)
                dtype = getattr(torch, name.rpartition(".")[2], None)
                if rows and isinstance(dtype, torch.dtype):
                    stack.enter_context(torch.autocast("cpu", dtype))
            yield

    def gradient(self, name: str, shape: tuple[int, ...] | None, back: int = 0) -> torch.Tensor | None:
        """Return a parameter's gradient as the optimiser saw it in this step, or `back` steps before."""
        rows = self.recorded.rows(self.step - back, "reduce", "param_grad", name)
        found = self.recorded.whole(rows, shape, batch=False)
        return found[0].tensor if found else None

    def gradient_copies(
        self, name: str, shape: tuple[int, ...]
    ) -> list[tuple[tuple[int, ...], torch.Tensor]]:
        """Return the unequal copies of a gradient, whole, with the ranks that hold each; none where all are equal."""
        rows = self.recorded.rows(self.step, "reduce", "param_grad", name)
        run = self.recorded.run
        if (
            len({int(run["boxes"][row]) for row in rows}) != 1
            or len({int(run["partial"][row]) for row in rows}) != 1
        ):
            return []
        held: dict[int, list[int]] = {}
        for row in rows:
            held.setdefault(int(run.digest[row]), []).append(row)
        whole = [(own, self.recorded.whole(own, shape, batch=False)) for own in held.values()]
        if len(held) == 1 or not all(found for _, found in whole):
            return []
        return [(tuple(int(run["rank"][r]) for r in own), found[0].tensor) for own, found in whole]

    def parted(self, name: str) -> tuple[int, ...]:
        """Return the ranks that each stepped their equal copy of a parameter by unequal gradients, and kept the result.

        Empty where that is not so, or the weights that the next step starts from were not recorded.
        """
        places = (self.stepped_from, (self.step, "step"), (self.step + 1, "init"))
        old, new, kept = (self._digests(at, "param", name) for at in places)
        grads = self._digests((self.step, "reduce"), "param_grad", f"{name}.grad")
        stepped = new == kept and old.keys() == new.keys() == grads.keys()
        own = stepped and len(set(old.values())) == 1 and not set(old.values()) & set(new.values())
        return tuple(sorted(old)) if own and len(set(grads.values())) > 1 else ()

    def whole_copies(self, name: str, shape: tuple[int, ...]) -> bool:
        """Return whether all ranks hold a parameter whole, without a declaration that they hold the same."""
        rows = self.recorded.rows(self.step, "step", "param", name)
        run = self.recorded.run
        whole = all(
            [box.sizes for box in parse_boxes(run.name("boxes", row) or "")] == [shape] for row in rows
        )
        return whole and all(self.recorded.unplaced(row) for row in rows)

    def _digests(self, at: tuple[int, str], kind: str, name: str) -> dict[int, int]:
        """Return a digest of the bits of a tensor by rank."""
        run = self.recorded.run
        return {int(run["rank"][row]): int(run.digest[row]) for row in self.recorded.rows(*at, kind, name)}

    def added_gradient(self, place: Place, name: str, shape: tuple[int, ...]) -> list[Reading]:
        """Return the readings of what a place's backward added to a parameter's gradient."""
        if self.of_expert(name):
            return []
        ties = self.ties.get(name.removesuffix(".grad"), ())
        each = [self._added(place, one, shape) for one in (name, *(f"{tie}.grad" for tie in ties))]
        found = [readings for readings in each if readings]
        if len(found) <= 1:
            return found[0] if found else []
        return [summed([readings[0].tensor for readings in found], "the sum of the ends of a pipeline")]

    def _added(self, place: Place, name: str, shape: tuple[int, ...]) -> list[Reading]:
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

    def targets(self, place: Place) -> list[torch.Tensor]:
        """Return what the loss of a place read beside the model's output; none where one of these is not known."""
        names = [n for n in self.recorded.names(self.step, "forward", "input") if n.startswith(TARGET)]
        found = [self.given(place, "input", name) for name in names]
        return [value for value in found if value is not None] if None not in found else []

    def buffers(self, place: Place) -> dict[str, torch.Tensor]:
        """Return copies of the model's buffers, as they were before a place's forward where its ranks had the same."""
        made = {name: value.detach().clone() for name, value in self.model.named_buffers()}
        run = self.recorded.run
        for name, value in made.items():
            rows = self.recorded.of_place(self._rows("forward", "input", f"{BUFFER}{name}"), place)
            if (
                len({int(run.digest[row]) for row in rows}) != 1
                or int(run["numel"][rows[0]]) != value.numel()
            ):
                continue
            held = self.recorded.local(rows[0])
            if held is not None and held.dtype == value.dtype:
                made[name] = held.reshape(value.shape)
        return made

    def activation(self, place: Place, name: str, call: int, _: int, shape: tuple[int, ...]) -> list[Reading]:
        """Return the readings of a module's output, of its call number `call` in the forward."""
        if self.of_expert(name):
            return []
        rows = self._rows("forward", "activation", name)
        return self.recorded.whole(self.recorded.of_place(rows, place, call), shape, batch=True)

    def activation_gradient(
        self, place: Place, name: str, call: int, calls: int, shape: tuple[int, ...]
    ) -> list[Reading]:
        """Return the readings of the gradient of a module's output, of its call number `call` of `calls`.

        Gradients come in the opposite order. Where the run called a module more often than the model does, all its
        gradients belong to the one output.
        """
        if self.of_expert(name):
            return []
        rows = self._rows("backward", "activation_grad", name)
        recorded = self.recorded.calls(rows, place)
        if calls > 1 and 0 < recorded < calls:
            return []  # the loss does not read all outputs, and nothing says which of them
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

    @property
    def narrow_format(self) -> torch.dtype | None:
        """The 16-bit format that the gradients were reduced in: sums in it cover them all, or they hold its numbers."""
        run = self.recorded.run
        here = (run["step"] == self.step) & (run["rank"] == run["rank"].min())
        grads = (
            here
            & run.named("phase", "reduce")
            & run.named("kind", "param_grad")
            & ~run.named("dtype", *_NARROW)
        )
        if not grads.any():
            return None
        for name, dtype in _NARROW.items():
            sent = np.flatnonzero(
                here & run.named("kind", "collective_in") & run.named("dtype", name)
            ).tolist()
            summed = sum(
                int(run["numel"][row]) for row in sent if run.name("label", row).endswith((".sum", ".avg"))
            )
            if summed >= int(run["numel"][grads].sum()):
                return dtype
        return torch.bfloat16 if bool(run.lowbits[grads].all()) else None

    def of_expert(self, tensor: str) -> bool:
        """Return whether a tensor is one of a module that only some data-parallel ranks hold, or of a part of it."""
        return any(tensor.startswith(f"{name}.") for name in self.experts)

    def _rows(self, phase: str, kind: str, name: str) -> list[int]:
        """Return the rows of a tensor; each stage of a pipeline calls a model of its own, and the last one's counts."""
        rows = self.recorded.rows(self.step, phase, kind, name)
        if name not in {ROOT, ROOT_GRADIENT} or not rows:
            return rows
        pipeline = self.recorded.run["pp"]
        last = max(int(pipeline[row]) for row in rows)
        return [row for row in rows if int(pipeline[row]) == last]

    def arranged(self, place: Place, tensors: Mapping[str, torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """Return tensors as the model of a place was called with those of their names, by position and by name."""
        form = self.given(place, "input", CALL)
        called = None if form is None else call_of(form.numpy().tobytes(), tensors)
        if called is not None:
            return called
        numbers = {n: whole_number(n, MAX_EXTENT) for n in tensors}
        places = {n: number for n, number in numbers.items() if number is not None}
        args = [tensors[n] for n in sorted(places, key=places.__getitem__)]
        return args, {n: value for n, value in tensors.items() if n not in places}
