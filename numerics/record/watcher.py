"""The hooks that record one rank of a trainer; `numerics.record.watch` makes them."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from numerics.errors import CaptureError
from numerics.record.added_gradients import AddedGradients
from numerics.record.batch_place import Batch, Layout, Place
from numerics.record.call_arguments import form_of, named_tensors
from numerics.record.collectives import Call, Collectives
from numerics.record.gathered_weights import GatheredWeights
from numerics.record.masters.known import masters_of
from numerics.record.masters.stepped import NONE
from numerics.record.module_hooks import ModuleHooks, recorded_modules, uncompiled
from numerics.record.placement import Placed, placed
from numerics.record.recorder import Recorder
from numerics.record.rows import Rows
from numerics.record.shape_inference import ShapeInference
from numerics.record.side_outputs import ends, losses_beside, recorded_name, tensors_beside
from numerics.record.training_state import (
    bit_sums,
    buffers,
    gradients,
    holds_gradients,
    moments,
    parameters,
    settings,
    steps_any,
    surroundings,
)
from numerics.record.wrapped_models import first_tensor, in_backward, module_of
from numerics.schema import CALL, LEARNING_RATE, SETTINGS, TARGET, TWICE, Kind, Phase


class Watcher:
    """The hooks of one rank; `close` removes them and finishes the capture."""

    def __init__(
        self,
        recorder: Recorder | None,
        model: nn.Module,
        optimizer: torch.optim.Optimizer | None,
        dp: tuple[int, int],
        micro_batches: int,
        batch: Batch | None,
        place: Place | None = None,
        *,
        collectives: bool = False,
    ) -> None:
        self._rows = Rows(recorder)
        self._model, self._optimizer = model, optimizer
        self._micro_batches, self._batch = micro_batches, batch
        self._layout = None if recorder is None else Layout(recorder, dp, micro_batches, batch, place)
        self._step, self._micro_batch, self._in_forward = 0, -1, False
        self._going_back = -1  # micro-batch whose backward runs: pipelines run it later than its forward
        self._sums: dict[str, int] = {}
        self._twice = (-1, -1)  # the step and micro-batch last seen to differentiate a gradient
        self._handles: list[Any] = []
        self._hooks = ModuleHooks()
        self._collectives = Collectives(self._collective) if recorder is not None and collectives else None
        self._gathered: GatheredWeights | None = None
        self._gradients: AddedGradients | None = None
        self._shapes = ShapeInference()
        # a trainer that steps tensors of its own writes parameters, and reduces gradients, where no hook is
        self._masters = NONE if recorder is None else masters_of(model, optimizer, dp)
        self._steps_own = optimizer is not None and (bool(self._masters) or steps_any(optimizer, model))
        if recorder is not None:
            self._parameters("init", -1)
            self._moments("init", -1)  # of a training that goes on
            self._attach()

    def _attach(self) -> None:
        # before FSDP gathers: the parameters as they stand at the start of a step
        self._hooks.before(self._model, self._starts, first=True, always=True)
        self._hooks.before(self._model, self._next_micro_batch, always=True)
        modules = recorded_modules(self._model)
        for name, module in modules.items():
            # before the hooks that turn a DTensor into a plain tensor, which no longer says what part it is
            self._hooks.after(module, self._output_hook(name), always=not name)
        # within DDP, after it has sent its first rank's buffers
        self._hooks.before(modules[""], self._buffers_before, always=True)
        if self._collectives is not None and self._layout is not None:
            self._gradients = AddedGradients(self._model, self._layout, self._added)
            self._gathered = GatheredWeights(self._model, self._layout, self._weight, self._added)
        if self._optimizer is not None:
            self._handles.append(self._optimizer.register_step_pre_hook(uncompiled(self._before_step)))
            self._handles.append(self._optimizer.register_step_post_hook(uncompiled(self._after_step)))

    def _watches(self) -> bool:
        """Return whether a forward is the run's own: one that trains, or any where nothing is trained."""
        return self._optimizer is None or torch.is_grad_enabled()

    def _collective(self, call: Call) -> None:
        if self._rows.to is None or call.value.is_complex():
            return
        phase: Phase = "backward" if in_backward() else "forward" if self._in_forward else "reduce"
        own = self._rows.own
        self._rows.put(call.label, call.value, step=self._step, phase=phase, partial=own, **call.columns)

    def _weight(self, name: str, at: Placed) -> None:
        """Record a gathered weight, once a step; a copy, for FSDP2 frees the memory that it was gathered into."""
        if not self._micro_batch and torch.is_grad_enabled() and not in_backward():
            copied = replace(at, local=at.local.detach().clone())
            self._record(name, copied, "forward", "param", module_of(name), -1)

    def _added(self, name: str, at: Placed) -> None:
        """Record what a backward adds to a parameter's gradient."""
        self._record(f"{name}.grad", at, "backward", "param_grad_local", module_of(name), self._going_back)

    def _starts(self, *_: object) -> None:
        if self._optimizer is None:
            if self._micro_batch == self._micro_batches - 1 and not self._shapes.asks():
                self._next_step()
            return
        went_back = self._going_back >= 0 and torch.is_grad_enabled()
        if went_back and self._micro_batch == self._micro_batches - 1 and not holds_gradients(self._model):
            self._next_step()  # the trainer skipped the update, as loss scaling does after an overflow
        if self._micro_batch < 0 and torch.is_grad_enabled():
            if self._step:
                self._parameters("init", self._step)
            self._sums = bit_sums(self._model) if self._collectives is not None else {}

    def _next_micro_batch(
        self, _model: nn.Module, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        given = named_tensors(args, kwargs)
        if not self._watches() or self._shapes.asks(*given.values()):
            return
        self._in_forward = True
        self._micro_batch += 1
        if self._micro_batch == self._micro_batches and self._batch is None:
            raise CaptureError(
                f"numerics.watch: a step makes more than micro_batches={self._micro_batches} forwards; say how many"
            )
        for name, value in given.items():
            self._value(f"in.{name}", value, "forward", "input", "", self._micro_batch)
        form = form_of(args, kwargs)
        for name, state in (*surroundings(self._model), *([] if form is None else [(CALL, form)])):
            partial = self._rows.own
            more: Any = {"phase": "forward", "kind": "input", "micro_batch": self._micro_batch}
            self.record(name, state, partial=partial, **more)

    def _buffers_before(self, *_: object) -> None:
        if self._in_forward:
            self._buffers("forward", self._micro_batch)

    def _buffers(self, phase: Phase, micro_batch: int) -> None:
        """Record the buffers of this rank's model, which no other rank need hold alike."""
        partial = self._rows.own
        for name, value in buffers(self._model):
            self.record(name, value, phase=phase, kind="input", micro_batch=micro_batch, partial=partial)

    def _output_hook(self, name: str) -> Callable[..., None]:
        tensor = f"{name}.out" if name else "out"

        def hook(_module: nn.Module, _given: object, output: object) -> None:
            self._in_forward = self._in_forward and bool(name)
            found = first_tensor(output)
            if found is None or self._shapes.asks(found) or found.is_complex() or not self._watches():
                return
            backward = in_backward()
            phase: Phase = "backward" if backward else "forward"
            micro_batch = self._micro_batch
            given = {tensor: found}
            if not name and found.requires_grad:  # another loss may be made of these
                beside = tensors_beside(self._model, output)
                last = ends(found, beside)
                given |= {
                    recorded_name(key): value for key, value in losses_beside(beside).items() if key in last
                }
            for key, value in given.items():
                self._value(key, value, phase, "activation", name, micro_batch)
                if value.requires_grad and not backward:
                    value.register_hook(self._gradient_hook(key, name, micro_batch))  # type: ignore[no-untyped-call]

        return hook

    def _gradient_hook(self, tensor: str, module: str, micro_batch: int) -> Callable[[torch.Tensor], None]:
        def hook(grad: torch.Tensor) -> None:
            self._going_back = micro_batch
            if torch.is_grad_enabled() and self._twice != (self._step, micro_batch):
                self._twice = self._step, micro_batch
                own = self._rows.own
                more: Any = {"phase": "backward", "kind": "input", "micro_batch": micro_batch}
                self.record(TWICE, torch.ones(()), partial=own, **more)
            self._value(f"{tensor}.grad", grad, "backward", "activation_grad", module, micro_batch)

        return hook

    def _value(
        self, tensor: str, value: torch.Tensor, phase: Phase, kind: Kind, module: str, micro_batch: int
    ) -> None:
        if self._layout is not None:
            self._record(
                tensor, self._layout.activation(tensor, value, micro_batch), phase, kind, module, micro_batch
            )

    def _record(
        self,
        tensor: str,
        at: Placed,
        phase: Phase,
        kind: Kind,
        module: str,
        micro_batch: int,
        step: int | None = None,
    ) -> None:
        """Record a placed tensor, at the current step if none is given."""
        at_step = self._step if step is None else step
        row: Any = {"step": at_step, "phase": phase, "kind": kind, "module": module}
        self._rows.placed(tensor, at, micro_batch=micro_batch, **row)

    def _parameters(self, phase: Phase, step: int) -> None:
        if self._layout is None:
            return
        for name, at in parameters(self._model, self._layout, NONE if phase == "init" else self._masters):
            self._record(name, at, phase, "param", module_of(name), -1, step)

    def _moments(self, phase: Phase, step: int) -> None:
        if self._layout is None:
            return
        if self._optimizer is None:
            return
        for name, key, at in moments(self._model, self._optimizer, self._layout, self._masters):
            self._record(f"{name}.{key}", at, phase, "optimizer", module_of(name), -1, step)

    def _before_step(self, *_: object) -> None:
        if self._layout is None or self._optimizer is None:
            return
        for mark in () if self._gradients is None else self._gradients.marks:
            own: Any = {"phase": "backward", "kind": "input", "partial": self._rows.own}
            self.record(mark, torch.ones(()), **own)
        changed = self._steps_own and self._sums and self._sums != bit_sums(self._model)  # as SAM does
        if self._masters or changed:  # the update does not start from the forward's weights
            self._parameters("reduce", self._step)
        for name, at in gradients(self._model, self._layout, self._masters) if self._steps_own else ():
            self._record(f"{name}.grad", at, "reduce", "param_grad", module_of(name), -1)
        for number, group in enumerate(self._optimizer.param_groups):
            rate = torch.as_tensor(group["lr"], dtype=torch.float64)
            self.record(f"{LEARNING_RATE}{number}", rate, phase="step")
        if self._rows.to is not None:  # each rank's own: ranks may get different settings
            stepped_with = settings(self._model, self._optimizer, self._masters)
            self.record(SETTINGS, stepped_with, phase="step", partial=self._rows.own)

    def _after_step(self, *_: object) -> None:
        if self._layout is None:
            return
        if self._steps_own:
            self._parameters("step", self._step)
        self._buffers("step", -1)
        self._moments("step", self._step)
        self._next_step()

    def _next_step(self) -> None:
        self._step += 1
        self._micro_batch = self._going_back = -1
        if self._collectives is not None:
            self._collectives.restart()
        if self._gradients is not None:
            self._gradients.restart()

    def targets(self, *tensors: torch.Tensor) -> None:
        """Record what the loss function reads beside the model's output; call it where the loss is computed."""
        for number, value in enumerate(tensors):
            self._value(f"{TARGET}{number}", value, "forward", "input", "", self._micro_batch)

    def record(self, tensor: str, value: torch.Tensor, **more: Any) -> None:
        """Record a tensor of your own (a loss, a clip coefficient) at this step; see `Recorder.record`."""
        if self._rows.to is not None:
            at = placed(value)
            given = {
                "phase": "forward",
                "kind": "scalar",
                "global_shape": at.shape,
                "boxes": at.boxes,
                "replica": at.replica,
                "partial": at.partial,
                **more,
            }
            self._rows.put(tensor, at.local, step=self._step, **given)

    def close(self) -> None:
        """Remove the hooks and finish the capture. Call it after the last step."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._hooks.close()
        for hooks in (self._gathered, self._gradients):
            if hooks is not None:
                hooks.close()
        self._shapes.close()
        if self._collectives is not None:
            self._collectives.close()
        self._rows.close()
