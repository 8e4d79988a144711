"""Records the order plan of a run: every reduction as it is announced, every accumulation as FSDP2 does it.

A hook. After the last step the ranks' parts are joined on rank 0 into RUN/order_plan.json, which the replay reads
for order and layout and compares with what the configuration declares.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from numerics.order.order_plan import OrderPlan, Reduction, merged, write_plan
from reftrain.execute.replicated import MIB, buckets
from reftrain.layout.settings import local_settings
from reftrain.rank.events import CollectiveCall, StepMetrics
from reftrain.rank.hooks import Hooks
from reftrain.rank.trainer_view import StageView, TrainerView
from reftrain.record.call_phase import moment
from reftrain.record.ring_bounds import ring_bounds
from reftrain.schedule.actions import COMPUTE, ENDS_BACKWARD, Action, Kind

Layout = tuple[tuple[str, int], ...]


@dataclass
class _Accumulation:
    """Micro-batches that a virtual stage added up in this step, and the formats of the sums."""

    operands: list[int] = field(default_factory=list)
    cuts: list[int] = field(default_factory=list)
    formats: set[str] = field(default_factory=set)


def parameter_groups(stage: StageView) -> Iterator[tuple[str, FSDPParamGroup]]:
    """FSDP2's groups of a stage by the name under which they are reduced."""
    modules = sorted(stage.module.named_modules(), key=lambda named: not named[0])  # the root comes last
    for name, module in modules:
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group  # noqa: SLF001 - FSDP2 shows it nowhere else
            if group is not None:
                yield name or stage.unit, group


def group_layout(stage: StageView, group: FSDPParamGroup, ranks: int) -> Layout:
    """Parameters in the group's flat buffer, in order, with the elements of one destination."""
    names = {id(parameter): name for name, parameter in stage.module.named_parameters()}
    layout = []
    for held in group.fsdp_params:
        name = names[id(held.sharded_param)]
        if stage.specs[name].frozen:
            continue
        shape, cut = stage.specs[name].local_shape, stage.specs[name].data_dim or 0
        layout.append((name, math.prod(-(-n // ranks) if d == cut else n for d, n in enumerate(shape))))
    return tuple(layout)


def _format(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


class OrderRecorder(Hooks):
    """Collects the reductions of this rank."""

    def __init__(self) -> None:
        self._trainer: TrainerView | None = None
        self._action: Action | None = None
        self._calls: dict[Reduction, list[int]] = {}
        self._sums: dict[int, _Accumulation] = {}
        self._layouts: dict[str, Layout] = {}
        self._units: dict[tuple[int, str], Layout] = {}
        self._eras: list[tuple[int, int, tuple[Reduction, ...]]] = []

    @property
    def _built(self) -> TrainerView:
        if self._trainer is None:
            raise AssertionError("built comes first")
        return self._trainer

    def built(self, trainer: TrainerView) -> None:
        """Note the layout of the buffers that hold several parameters."""
        self._trainer = trainer
        ranks = trainer.mesh.shard_size
        for number, stage in trainer.stages.items():
            for name, group in parameter_groups(stage):
                shards = group.mesh_info.mesh.size(group.mesh_info.mesh.ndim - 1)
                self._units[number, f"{name}.grad"] = group_layout(stage, group, shards)
        local = trainer.local_parameters()
        for axis in ("dp_cp", "tp", "kv"):
            self._layouts[f"{axis}.partial_gradients"] = tuple(
                (name, local[name].numel())
                for stage in trainer.stages.values()
                for name, spec in stage.specs.items()
                if axis in spec.sums and not spec.frozen
            )
        for number, stage in trainer.stages.items():
            trained = [name for name, spec in stage.specs.items() if not spec.frozen]
            self._layouts[f"stage{number}.grad"] = tuple((name, local[name].numel()) for name in trained)
        self._bucket_layouts(trainer)
        self._layouts["grad_norm"] = (("shards", ranks),)
        ends = ("tok_embeddings.weight", "output.weight")
        size = next((local[name].numel() for name in ends if name in local), 0)
        self._layouts["tied_embedding.grad"] = tuple((name, size) for name in ends)

    def _bucket_layouts(self, trainer: TrainerView) -> None:
        """Note the buckets of a replicated run."""
        most = trainer.config.mesh.bucket_mb
        if not most:
            return
        frozen = {n for stage in trainer.stages.values() for n, spec in stage.specs.items() if spec.frozen}
        ready = [(n, t) for n, t in trainer.local_parameters().items() if n not in frozen][::-1]
        cuts = buckets([t.numel() * t.element_size() for _, t in ready], most * MIB)
        for number, run in enumerate(cuts):
            layout = tuple((ready[place][0], ready[place][1].numel()) for place in run)
            self._layouts[f"bucket{number}.grad"] = layout

    def action_begin(self, action: Action) -> None:
        """Remember what is computed or reduced now."""
        self._action = action if action.kind in COMPUTE | {Kind.REDUCE_GRADIENT} else None

    def action_end(self, action: Action) -> None:
        """Note what a backward added, and a reduction that follows one in two parts."""
        if action.kind in ENDS_BACKWARD:
            self._accumulated(action)
        sums = self._sums.get(action.stage)
        if action.kind is Kind.REDUCE_GRADIENT and sums and action.micro_batch not in sums.cuts:
            sums.cuts.append(action.micro_batch)
        self._action = None

    def _accumulated(self, action: Action) -> None:
        sums = self._sums.setdefault(action.stage, _Accumulation())
        sums.operands.append(action.micro_batch)
        groups = [group for _, group in parameter_groups(self._built.stages[action.stage])]
        if all(group.reduce_grads for group in groups):
            sums.cuts.append(action.micro_batch)
            return
        for group in groups:
            for held in group.fsdp_params:
                grad = held.unsharded_accumulated_grad
                if grad is None:
                    grad = held._unsharded_param.grad  # noqa: SLF001 - its property asserts another state
                if grad is not None:
                    sums.formats.add(_format(grad.dtype))

    def collective_begin(self, call: CollectiveCall) -> None:
        """Note a reduction, or a gradient that travels round the ring."""
        ring = call.op == "send" and call.axis == "cp" and call.label.endswith(".kv.grad")
        if call.group is None or dist.get_world_size(call.group) == 1:
            return
        if not (ring or call.op in {"all_reduce", "reduce_scatter"}):
            return
        phase, number = moment(call, self._action)
        if phase == "reduce" and self._action is not None:
            number = self._action.micro_batch
        group = tuple(dist.get_process_group_ranks(call.group))
        elements = call.tensor.numel()
        layout = self._layouts.get(call.label, ())
        if self._action is not None:
            layout = self._units.get((self._action.stage, call.label), layout)
        gloo = dist.get_backend(call.group) == "gloo" and not ring
        key = Reduction(
            label=call.label,
            axis=call.axis,
            op="ring" if ring else call.op,
            phase=phase,
            dtype=_format(call.tensor.dtype),
            group=group,
            operands=(),
            reduction=call.reduction,
            elements=elements,
            bounds=tuple(ring_bounds(elements, call.tensor.element_size(), len(group))) if gloo else (),
            layout=layout,
        )
        self._calls.setdefault(key, []).append(number)

    def _of_stage(self, stage: int, sums: _Accumulation) -> Reduction:
        groups = list(parameter_groups(self._built.stages[stage]))
        factors = {group.gradient_divide_factor or 1.0 for _, group in groups}
        own = self._built.stages[stage]
        layout = [entry for _, group in groups for entry in group_layout(own, group, 1)]
        return Reduction(
            label=f"stages.{stage}",
            axis="micro_batch",
            op="accumulate",
            phase="reduce",
            dtype="+".join(sorted(sums.formats)),
            group=(),
            operands=tuple(sums.operands),
            cuts=tuple(sums.cuts),
            scale=1.0 / max(factors),
            layout=tuple(layout),
        )

    def step_end(self, metrics: StepMetrics) -> None:
        """Close the step: extend the last era where it made the same reductions, else begin a new one."""
        found = [
            msgspec.structs.replace(key, operands=tuple(numbers)) for key, numbers in self._calls.items()
        ]
        found += [self._of_stage(stage, sums) for stage, sums in sorted(self._sums.items())]
        self._calls, self._sums = {}, {}
        step, reductions = metrics.step, tuple(found)
        if self._eras and self._eras[-1][2] == reductions:
            self._eras[-1] = (self._eras[-1][0], step + 1, reductions)
        else:
            self._eras.append((step, step + 1, reductions))
        if step + 1 == self._built.config.steps:
            self._write()

    def _observed(self) -> dict[str, str]:
        """Return the settings that this process can be asked for, in place of what the configuration says."""
        mesh, loader = self._built.mesh, self._built.loader
        return {
            "tp": str(mesh.tp.size),
            "cp": str(mesh.cp.size),
            "ep": str(mesh.ep.size),
            "micro_batch_size": str(loader.config.micro_batch_size),
            "threads": str(torch.get_num_threads()),
            "backend": dist.get_backend(),
        }

    def _write(self) -> None:
        """Join all ranks' parts and write them from rank 0."""
        config = self._built.config
        own = [
            msgspec.structs.replace(reduction, steps=(first, end))
            for first, end, reductions in self._eras
            for reduction in reductions
        ]
        parts: list[Any] = [None] * config.mesh.world_size
        dist.all_gather_object(parts, own)
        if self._built.mesh.rank == 0:
            sizes = {axis: config.mesh.sizes[axis] for axis in config.mesh.order}
            plan = OrderPlan(
                source="recorded",
                world_size=config.mesh.world_size,
                mesh=sizes,
                local=local_settings(config) | self._observed(),
                reductions=merged(parts),
            )
            write_plan(Path(config.out), plan)
