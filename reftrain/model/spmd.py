"""The decoder under SPMD 2-D sharding: the same modules and names, with tensors annotated over two axes.

Shapes: B sequences, S tokens, D width; every residual is (B, S, D/tp). Queries, keys and values leave their products as
addends over the features of the input and are reduce-scattered into heads; attention's output is gathered in front of
the output projection. Tables: `reftrain.parallel.spmd`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from reftrain.model.attention import recomputed
from reftrain.model.batch import LocalBatch
from reftrain.model.context import NORMAL_STD, ModelContext
from reftrain.model.decoder import Layer, Stage
from reftrain.model.layers import Attention, Projection, Queries, RMSNorm, rotate
from reftrain.model.parameters import Spec, SpecModule
from reftrain.parallel.spmd import Annotated, dimensions


@dataclass(frozen=True)
class SpmdContext(ModelContext):
    """Settings of the annotated model on one rank; `mesh` has both axes."""

    mesh: DeviceMesh | None = None

    @property
    def model_axis(self) -> Annotated:
        """Changes of annotation over the model axis."""
        if not isinstance(self.tp, Annotated):
            raise TypeError("an annotated model has an annotated axis")
        return self.tp

    def split(self, shape: tuple[int, ...], dim: int, std: float = NORMAL_STD) -> Spec:
        """Spec of a matrix that model cuts along `dim`, and data along the other dimension."""
        return replace(super().split(shape, dim, std), data_dim=1 - dim)

    def vocabulary(self, tied_to: str | None = None, *, embeds: bool = False) -> Spec:
        """Spec of the embedding or output matrix, rows over model and columns over data."""
        return replace(super().vocabulary(tied_to, embeds=embeds), data_dim=1)

    def matrix(self, name: str, rows: int, columns: int, std: float = NORMAL_STD) -> Projection:
        """Projection that is annotated as the table says for `name`."""
        dim, _ = dimensions(name)
        return Projection(self.split((rows, columns), dim, std), None, self.parameter_dtype)


def annotate(context: ModelContext, mesh: DeviceMesh) -> SpmdContext:
    """Return the context of the same model annotated over the axes of a mesh: dp as data, and tp where it has ranks."""
    model = mesh["tp"] if "tp" in (mesh.mesh_dim_names or ()) else None
    plain = {field.name: getattr(context, field.name) for field in fields(context)}
    return SpmdContext(**plain | {"tp": Annotated(context.tp.axis, model), "mesh": mesh})


class SpmdNorm(RMSNorm):
    """RMSNorm of features that are cut over model: the sum of squares is one number a token, summed over the axis."""

    def __init__(self, context: SpmdContext, name: str) -> None:
        model = context.model
        super().__init__(model.dim, model.norm_eps, ("dp_cp", "tp"), context.parameter_dtype)
        self.own_specs["weight"] = replace(self.own_specs["weight"], data_dim=None)
        self.context, self.name = context, name

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(B, S, D/tp) to the same."""
        tp, width = self.context.model_axis, self.context.model.dim
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        squares = tp.total(wide.square().sum(dim=-1, keepdim=True), f"{self.name}.squares")
        normal = wide * torch.rsqrt(squares / width + self.eps)
        return normal.to(x.dtype) * own_features(self.weight, tp).to(x.dtype)


def own_features(weight: torch.Tensor, tp: Annotated) -> torch.Tensor:
    """Return this rank's features of a norm's weight; the gradient is an addend over both axes."""
    if isinstance(weight, DTensor):
        weight = weight.to_local(grad_placements=[Partial() for _ in weight.placements])
    return weight.chunk(tp.axis.size)[tp.axis.index]


class SpmdQueries(Queries):
    """Queries, keys and values: addends over the features of the input, then heads cut over model, then RoPE."""

    def __init__(self, context: ModelContext) -> None:
        nn.Module.__init__(self)
        if not isinstance(context, SpmdContext):
            raise TypeError("annotated queries need an annotated context")
        self.context, model = context, context.model
        keys = model.kv_heads * model.head_dim
        self.wq = context.matrix("wq", model.heads * model.head_dim, model.dim)
        self.wk = context.matrix("wk", keys, model.dim)
        self.wv = context.matrix("wv", keys, model.dim)
        self.name, self.segment = "", context.segment("qkv", -1)

    def forward(self, x: torch.Tensor, rope: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(B, S, D/tp) to (B, H, S, head_dim) queries, keys and values of this rank's heads."""
        context = self.context
        (x,) = context.segments.begin(self.segment, x)
        addends = context.segments.end(self.segment, self.wq(x), self.wk(x), self.wv(x))
        labels = (f"{self.name}.{part}" for part in ("wq", "wk", "wv"))
        width = context.model.head_dim
        queries, keys, values = (
            torch.unflatten(context.tp.leave(addend, label), -1, (-1, width)).transpose(1, 2).contiguous()
            for addend, label in zip(addends, labels, strict=True)
        )
        return rotate(queries, rope), rotate(keys, rope), values


class SpmdAttention(Attention):
    """Grouped-query attention with heads cut over model, as scores are annotated."""

    queries = SpmdQueries

    def __init__(self, context: SpmdContext, name: str, layer: int) -> None:
        super().__init__(context, name, layer)
        model = context.model
        if isinstance(self.qkv, SpmdQueries):
            self.qkv.name, self.qkv.segment = f"{name}.qkv", self.qkv_segment
        made = context.matrix("wo", model.dim, model.heads * model.head_dim, context.residual_std)
        self.add_module("wo", made)  # in place of the row-parallel one

    def forward(self, x: torch.Tensor, batch: LocalBatch) -> torch.Tensor:
        """(B, S, D/tp) to the same."""
        context = self.context
        queries, keys, values = self.project(x, batch)
        if context.recompute == "selective":
            attended = recomputed(self.core, queries, keys, values, batch)
        else:
            attended = self.core(queries, keys, values, batch)
        whole = context.tp.enter(attended.transpose(1, 2).flatten(2), f"{self.name}.wo")
        (whole,) = context.segments.begin(self.out_segment, whole)
        (out,) = context.segments.end(self.out_segment, self.wo(whole))
        return out


class SpmdLayer(Layer):
    """One pre-norm decoder layer on annotated tensors; the feed-forward is the plain one, between other annotations."""

    attends = SpmdAttention

    @staticmethod
    def make_norm(context: ModelContext, name: str) -> RMSNorm:
        """Make a norm over features that are cut over model."""
        if not isinstance(context, SpmdContext):
            raise TypeError("an annotated norm needs an annotated context")
        return SpmdNorm(context, name)


class SpmdStage(Stage):
    """The whole model on one rank, every parameter a DTensor over the model axis; FSDP2 adds the data axis."""

    layer = SpmdLayer

    def __init__(self, context: SpmdContext, layers: Sequence[int], *, first: bool, last: bool) -> None:
        super().__init__(context, layers, first=first, last=last)
        for module in self.modules():
            if isinstance(module, SpecModule):
                for name, spec in module.own_specs.items():
                    parameter = module.get_parameter(name)
                    module.register_parameter(name, nn.Parameter(_annotated(parameter, spec, context)))


def stage_of(context: ModelContext, layers: Sequence[int], *, first: bool, last: bool) -> Stage:
    """Return a stage of the model, annotated where its context is."""
    if isinstance(context, SpmdContext):
        return SpmdStage(context, layers, first=first, last=last)
    return Stage(context, layers, first=first, last=last)


def _annotated(parameter: nn.Parameter, spec: Spec, context: SpmdContext) -> torch.Tensor:
    """Return a parameter without storage as a DTensor: cut over model, or whole on every rank of both axes."""
    if context.mesh is None:
        raise AssertionError("an annotated model has a mesh")
    if spec.data_dim is None:
        whole = [Replicate() for _ in range(context.mesh.ndim)]
        return DTensor.from_local(parameter.detach(), context.mesh, whole, run_check=False)
    if context.model_axis.mesh is None or spec.split is None:
        return parameter.detach()
    return DTensor.from_local(
        parameter.detach(), context.model_axis.mesh, [Shard(spec.split)], run_check=False
    )
