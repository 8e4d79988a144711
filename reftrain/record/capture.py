"""`reftrain run --capture`: values of every module, collective and reduction of a rank as capture rows.

A hook like the others: it watches and changes nothing. Names and places are those the replay writes, so that a run
and its matched baseline meet row by row. Under recomputation, what a module computes a second time is recorded as
such. Weights gathered by FSDP2 are not recorded: the shards are, after every step.
"""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from numerics.record.recorder import CaptureError, Recorder
from numerics.schema import FOLDER, PARTIAL_SUFFIX, STAMP, Level, Phase, rank_file, values_file
from reftrain.errors import MachineError
from reftrain.layout.capture_rows import RankRows, on_gradient
from reftrain.layout.grid import Seat
from reftrain.layout.placement import Placements, is_activation, is_repeated
from reftrain.model.batch import LocalBatch
from reftrain.rank.events import CollectiveCall, StepMetrics
from reftrain.rank.hooks import Hooks, RunContext
from reftrain.rank.trainer_view import TrainerView
from reftrain.record.call_phase import moment
from reftrain.schedule.actions import BACKWARDS, COMPUTE, Action
from tracekit.own_files import of_a_run, remove_own

SOURCE = "reftrain"
RANK = re.compile(r"rank(\d{5,7})\.")
REPLAY = "replay"
INPUTS = ("attention.qkv", "attention.wo", "feed_forward.w1", "feed_forward.w2")
REPORTED = frozenset({"loss"})
STEP_VALUES = frozenset({"learning_rate", "clip"})


class Capture(Hooks):
    """Records one rank of a run into RUN/capture."""

    def __init__(self, level: str, names: tuple[str, ...]) -> None:
        self.level = cast("Level", level)
        self.names = names
        self._trainer: TrainerView | None = None
        self._rows: RankRows | None = None
        self._action: Action | None = None
        self._begun = False
        self._whole = False
        self._seen: dict[str, nn.Parameter] = {}

    @property
    def rows(self) -> RankRows:
        """Rows of this rank."""
        if self._rows is None:
            raise AssertionError("setup comes first")
        return self._rows

    def setup(self, context: RunContext) -> None:
        """Open the rank's file; an earlier capture of this run's folder goes."""
        config, coords = context.config, context.mesh.coords
        clear(Path(config.out), context.rank, config.mesh.world_size)
        try:
            recorder = Recorder(
                config.out,
                context.rank,
                config.mesh.world_size,
                coords,
                level=self.level,
                names=self.names,
                source=SOURCE,
            )
        except CaptureError as error:
            raise MachineError(str(error)) from error
        self._rows = RankRows(recorder, Placements(config), Seat(**coords))

    def built(self, trainer: TrainerView) -> None:
        """Watch every module of every stage."""
        self._trainer = trainer
        for stage in trainer.stages.values():
            stage.module.register_forward_pre_hook(self._on_inputs)
            for name, module in stage.module.named_modules():
                if getattr(module, "own_specs", None):
                    module.register_forward_pre_hook(self._parameter_watch(name))
                own_input = name.split(".", 2)[-1] in INPUTS
                if own_input and not is_repeated(f"{name}.in", trainer.config):
                    module.register_forward_pre_hook(self._input_watch(f"{name}.in"))
                module.register_forward_hook(self._output_watch(name))

    def _micro_batch(self) -> int:
        return -1 if self._action is None else self._action.micro_batch

    def _is_recomputing(self) -> bool:
        return self._action is not None and self._action.kind in BACKWARDS

    def _on_inputs(self, _: nn.Module, arguments: tuple[Any, ...]) -> None:
        batch = arguments[-1]
        if isinstance(batch, LocalBatch) and not self._is_recomputing():
            given = {
                "tokens": batch.tokens,
                "targets": batch.targets,
                "positions": batch.positions,
                "rope": batch.rope,
                "mask": batch.allowed,
            }
            for name, value in given.items():
                if value is not None:
                    self.rows.given(name, value, self._micro_batch())

    def _activation(self, name: str, value: torch.Tensor) -> None:
        number, again = self._micro_batch(), self._is_recomputing()
        self.rows.activation(name, value, number, recomputed=again)
        if value.requires_grad and not again:
            on_gradient(value, self._gradient_watch(name, number))

    def _gradient_watch(self, name: str, number: int) -> Callable[[torch.Tensor], None]:
        """Record a gradient when it comes first: a backward in two parts passes some tensors twice."""
        passed: list[bool] = []

        def seen(grad: torch.Tensor) -> None:
            if not passed:
                passed.append(True)
                self.rows.activation_grad(name, grad, number)

        return seen

    def _input_watch(self, name: str) -> Any:
        def seen(_: nn.Module, arguments: tuple[Any, ...]) -> None:
            self._activation(name, arguments[0])

        return seen

    def _output_watch(self, name: str) -> Any:
        def seen(_: nn.Module, __: tuple[Any, ...], output: Any) -> None:
            if isinstance(output, tuple):
                for part, value in zip(("queries", "keys", "values"), output, strict=True):
                    self._activation(f"{name}.{part}", value)
            elif is_activation(f"{name}.out") and not is_repeated(f"{name}.out", self._built.config):
                self._activation(f"{name}.out", output)

        return seen

    def _parameter_watch(self, name: str) -> Any:
        """Hook the gathered parameters' gradients once they exist; FSDP2 keeps them from step to step."""

        def seen(module: nn.Module, _: tuple[Any, ...]) -> None:
            for own, parameter in module.named_parameters(recurse=False):
                full = f"{name}.{own}"
                if parameter.requires_grad and self._seen.get(full) is not parameter:
                    self._seen[full] = parameter
                    on_gradient(parameter, self._local_gradient_watch(full))

        return seen

    def _local_gradient_watch(self, name: str) -> Any:
        return lambda grad: self.rows.local_gradient(name, own_part(grad), self._micro_batch())

    def step_begin(self, step: int) -> None:
        """Record the first values before the first step, with the moments of a run that goes on."""
        if not self._begun:
            self._begun = True
            self._state("init", moments=step > 0)
        self.rows.step = step

    @property
    def _built(self) -> TrainerView:
        if self._trainer is None:
            raise AssertionError("built comes first")
        return self._trainer

    def action_begin(self, action: Action) -> None:
        """Remember what is computed now."""
        self._action = action if action.kind in COMPUTE else None

    def action_end(self, action: Action) -> None:
        """Forget it."""
        del action
        self._action = None

    def collective_begin(self, call: CollectiveCall) -> None:
        """Record what goes in."""
        if call.op != "recv" and not self._is_weights(call):
            self._collective(call, call.tensor, result=False)

    def collective_end(self, call: CollectiveCall) -> None:
        """Record what came out, of a call that is complete."""
        if call.peer is None and not call.awaited and not self._is_weights(call):
            self._collective(call, call.tensor if call.output is None else call.output, result=True)

    def wait_end(self, call: CollectiveCall) -> None:
        """Record what a message brought, or a sum that was made beside the computation."""
        if call.op == "recv" or call.awaited:
            self._collective(call, call.tensor, result=True)

    @staticmethod
    def _is_weights(call: CollectiveCall) -> bool:
        return call.axis in {"dp_cp", "edp"} and call.op == "all_gather"

    def _collective(self, call: CollectiveCall, value: torch.Tensor, *, result: bool) -> None:
        if call.group is None or dist.get_world_size(call.group) == 1:
            return
        phase, number = moment(call, self._action)
        self.rows.collective(
            call.axis,
            call.op,
            call.label,
            value,
            phase,
            dist.get_process_group_ranks(call.group),
            number,
            result=result,
        )

    def value(self, name: str, value: torch.Tensor) -> None:
        """Record a named value."""
        if is_activation(name):
            self._activation(name, value)
            return
        if name.startswith("data."):
            self.rows.read(name, value)
            return
        phase: Phase = "forward" if name == "valid_tokens" else "step" if name in STEP_VALUES else "reduce"
        self.rows.scalar(name, value, phase, reported=name in REPORTED)

    def gradients_end(self, step: int) -> None:
        """Record the reduced gradients."""
        del step
        for name, grad in self._built.local_gradients().items():
            self.rows.shard(name, grad, "param_grad", "reduce", ".grad")

    def step_end(self, metrics: StepMetrics) -> None:
        """Record parameters and optimiser state after the step."""
        self._state("step", moments=True)
        self._whole = metrics.step + 1 == self._built.config.steps

    def _state(self, phase: Phase, *, moments: bool) -> None:
        for name, shard in self._built.local_parameters().items():
            self.rows.shard(name, shard, "param", phase)
        for kind, tensors in self._built.optimizer_state().items() if moments else ():
            for name, tensor in tensors.items():
                self.rows.shard(name, tensor, "optimizer", phase, f".{kind}")

    def close(self) -> None:
        """Finish the file after a good run; after another one its marker stays."""
        if self._whole:
            self.rows.recorder.close()


def own_part(grad: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of an annotated gradient, or a plain one as it is."""
    return grad._local_tensor if isinstance(grad, DTensor) else grad  # noqa: SLF001 - to_local() makes a node


def clear(run: Path, rank: int, world_size: int) -> None:
    """Remove an earlier run's files from the folder: this rank's, and on rank 0 those of ranks that no longer exist.

    Its replay is removed as well; what a stranger put there stays.
    """
    folder = run / FOLDER
    own = {rank_file(rank), rank_file(rank) + PARTIAL_SUFFIX, values_file(rank)}
    if rank == 0:
        own.add(STAMP)
        remove_own(run / REPLAY, lambda path: of_a_run(f"{REPLAY}/{path}"))
        found = {path.name: RANK.search(path.name) for path in folder.glob("*rank*")}
        own |= {name for name, match in found.items() if match and int(match[1]) >= world_size}
    for name in own:
        with contextlib.suppress(FileNotFoundError):
            (folder / name).unlink()
