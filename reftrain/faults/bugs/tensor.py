"""Bugs of tensor and sequence parallelism: projections, heads and norms. See `vocabulary` for embedding and loss."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from reftrain.config.run import RunConfig
from reftrain.execute import sharded_stage
from reftrain.faults.bugs import needs
from reftrain.faults.bugs.bug import BugField, Patches, Place, Values, bug
from reftrain.model.context import ModelContext
from reftrain.model.decoder import Stage
from reftrain.model.layers import Queries, RowProjection
from reftrain.model.parameters import Part, Spec, shard_part
from reftrain.parallel.autograd import call
from reftrain.parallel.tensor import TensorParallel, _Scatter, _Sum, gather_sequence
from reftrain.rank.comm import Axis

COLUMN = {"qkv": "attention.qkv", "w1": "feed_forward.w1"}
ROW = {"wo": "attention.wo", "w2": "feed_forward.w2"}
OF_COLUMN = BugField("column-parallel input: qkv or w1", "qkv", choices=("qkv", "w1"))
OF_ROW = BugField("row-parallel projection: wo or w2", "wo", choices=("wo", "w2"))


def own_piece(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """This rank's piece of the sequence: (B, S, D) becomes (B, S/tp, D)."""
    return x.chunk(axis.size, dim=1)[axis.index].contiguous()


class _GatherUnsummed(torch.autograd.Function):
    """Joins the sequence; the gradient is cut but not summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis, label: str) -> torch.Tensor:
        ctx.axis = axis
        return gather_sequence(x, axis, label)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return own_piece(grads[0], ctx.axis), None, None


class _CutUnsummed(torch.autograd.Function):
    """Cuts the sequence without summing; the pieces of the gradient are joined."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis, label: str) -> torch.Tensor:
        ctx.axis, ctx.label = axis, label
        return own_piece(x, axis)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return gather_sequence(grads[0], ctx.axis, f"{ctx.label}.grad"), None, None


Crossing = Callable[[TensorParallel, torch.Tensor, str], torch.Tensor]
"""How an activation comes into a column-parallel projection (`enter`), or out of a row-parallel one (`leave`)."""


def _at_projection(
    patches: Patches, method: str, names: Mapping[str, str], values: Values, wrong: Crossing
) -> None:
    """Cross as `wrong` does at the projection that the bug's fields name, and as before elsewhere."""
    wanted = f"layers.{values['layer']}.{names[str(values['of'])]}"
    original: Crossing = vars(TensorParallel)[method]

    def planted(self: TensorParallel, x: torch.Tensor, label: str) -> torch.Tensor:
        return (wrong if label == wanted else original)(self, x, label)

    patches.set(TensorParallel, method, planted)


@bug(
    "P01",
    "tp",
    "no all-reduce of a column-parallel input's gradient",
    "gradient into the norm before it",
    needs.axis("tp"),
    needs.layer,
    needs.reached,
    fields={"layer": needs.LAYER, "of": OF_COLUMN},
    magnitudes=({"layer": 0}, {"layer": 1, "of": "w1"}),
)
def skip_input_gradient_sum(patches: Patches, place: Place, values: Values) -> None:
    """Let the gradient pass unsummed."""
    del place

    def unsummed(self: TensorParallel, x: torch.Tensor, label: str) -> torch.Tensor:
        out: torch.Tensor = call(_GatherUnsummed, x, self.axis, label) if self.sequence_parallel else x
        return out

    _at_projection(patches, "enter", COLUMN, values, unsummed)


@bug(
    "P02",
    "tp",
    "row-parallel all-reduce skipped in one layer",
    "that projection's output",
    needs.axis("tp"),
    needs.layer,
    fields={"layer": needs.LAYER, "of": OF_ROW},
    magnitudes=({"layer": 0}, {"layer": 1, "of": "w2"}),
)
def skip_row_sum(patches: Patches, place: Place, values: Values) -> None:
    """Let the partial sums leave as they are."""
    del place

    def unsummed(self: TensorParallel, x: torch.Tensor, label: str) -> torch.Tensor:
        out: torch.Tensor = call(_CutUnsummed, x, self.axis, label) if self.sequence_parallel else x
        return out

    _at_projection(patches, "leave", ROW, values, unsummed)


@bug(
    "P03",
    "tp",
    "row-parallel bias added on every rank (times tp)",
    "output of layers.0.attention.wo",
    needs.axis("tp"),
    needs.model("bias"),
)
def bias_on_every_rank(patches: Patches, place: Place, values: Values) -> None:
    """Add the bias before the sum."""
    del place, values

    def forward(self: RowProjection, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight, self.bias)

    def finish(self: RowProjection, x: torch.Tensor) -> torch.Tensor:
        del self
        return x

    patches.set(RowProjection, "forward", forward)
    patches.set(RowProjection, "finish", finish)


@bug(
    "P04",
    "tp",
    "row-parallel all-reduce applied twice (times tp)",
    "that projection's output",
    needs.axis("tp"),
    needs.layer,
    fields={"layer": needs.LAYER, "of": OF_ROW},
    magnitudes=({"layer": 0}, {"layer": 1, "of": "w2"}),
)
def sum_twice(patches: Patches, place: Place, values: Values) -> None:
    """Sum what has been summed."""
    del place

    def twice(self: TensorParallel, x: torch.Tensor, label: str) -> torch.Tensor:
        once = call(_Sum, x, self.axis, label)
        out: torch.Tensor = call(_Scatter if self.sequence_parallel else _Sum, once, self.axis, label)
        return out

    _at_projection(patches, "leave", ROW, values, twice)


def _several_local_heads(config: RunConfig, values: Values) -> str | None:
    del values
    local = config.model.kv_heads // config.mesh.tp
    return "a tensor rank holds one key/value head: both layouts are the same" if local < 2 else None


@bug(
    "P12",
    "tp",
    "fused query/key/value chunked without de-interleaving",
    "queries, keys and values",
    needs.model("fused_qkv"),
    _several_local_heads,
)
def chunk_interleaved(patches: Patches, place: Place, values: Values) -> None:
    """Take the first rows for queries, the next for keys, the last for values."""
    del place, values

    def planted(self: Queries, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        joint = self.wqkv(x).unflatten(-1, (-1, self.context.model.head_dim))
        kv = joint.shape[-2] // (self.context.groups + 2)
        queries, keys, values = joint.split([kv * self.context.groups, kv, kv], dim=-2)
        return queries, keys, values

    patches.set(Queries, "project", planted)


def _copied_heads(config: RunConfig, values: Values) -> str | None:
    del values
    heads, tp = config.model.kv_heads, config.mesh.tp
    return (
        f"{heads} key/value heads on tp {tp} are not copied: it needs fewer than tp" if heads >= tp else None
    )


@bug(
    "P14",
    "tp",
    "gradients of copied key/value heads not summed",
    "gradients of wk and wv",
    needs.axis("tp"),
    _copied_heads,
)
def copies_unsummed(patches: Patches, place: Place, values: Values) -> None:
    """Forget that the copies' gradients are partial."""
    del place, values
    original = ModelContext.key_value

    def planted(self: ModelContext, shape: tuple[int, ...]) -> Spec:
        return replace(original(self, shape), sums=())

    patches.set(ModelContext, "key_value", planted)


@bug(
    "P15",
    "tp",
    "partial gradient of a replicated norm (q_norm, k_norm) not summed",
    "gradient of q_norm, unequal on the tensor ranks",
    needs.axis("tp"),
    needs.model("qk_norm"),
)
def head_norm_unsummed(patches: Patches, place: Place, values: Values) -> None:
    """Forget that each tensor rank sees its own heads only."""
    del place, values
    patches.set(ModelContext, "tp_sum", property(lambda self: ()))  # noqa: ARG005 - a property's


@bug(
    "P16", "tp", "all tensor shards start from the same values", "parameters before step 0", needs.axis("tp")
)
def same_initial_shards(patches: Patches, place: Place, values: Values) -> None:
    """Give every shard the first shard's values."""
    del place, values

    def planted(spec: Spec, shard_size: int, shard_index: int) -> Part:
        return shard_part(replace(spec, start=0), shard_size, shard_index)

    patches.set(sharded_stage, "shard_part", planted)


@bug(
    "P17",
    "sp",
    "the final norm's gradient not summed over the sequence pieces",
    "gradient of norm.weight, unequal on the tensor ranks",
    needs.axis("tp"),
    needs.sequence_parallel,
    needs.trained,
)
def final_norm_unsummed(patches: Patches, place: Place, values: Values) -> None:
    """Forget that the final norm saw a piece of the sequence."""
    del place, values
    original = Stage.__init__

    def planted(self: Stage, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        if self.norm is not None:
            self.norm.own_specs["weight"] = replace(self.norm.own_specs["weight"], sums=())

    patches.set(Stage, "__init__", planted)
