"""Bugs of tensor and sequence parallelism."""

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from reftrain.comm import Axis
from reftrain.config import RunConfig
from reftrain.faults.bugs import needs
from reftrain.faults.bugs.bug import Knob, Patches, Place, Values, bug
from reftrain.model import decoder
from reftrain.model.context import ModelContext
from reftrain.model.decoder import Embedding, Stage
from reftrain.model.layers import Queries, RowProjection
from reftrain.model.parameters import Part, Spec, shard_part
from reftrain.parallel import cross_entropy, data
from reftrain.parallel.autograd import call
from reftrain.parallel.tensor import TensorParallel, _Scatter, _Sum, gather_sequence

COLUMN = {"qkv": "attention.qkv", "w1": "feed_forward.w1"}
ROW = {"wo": "attention.wo", "w2": "feed_forward.w2"}
OF_COLUMN = Knob("column-parallel input: qkv or w1", "qkv", choices=("qkv", "w1"))
OF_ROW = Knob("row-parallel projection: wo or w2", "wo", choices=("wo", "w2"))


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


@bug(
    "P01",
    "tp",
    "no all-reduce of a column-parallel input's gradient",
    "gradient into the norm before it",
    needs.axis("tp"),
    needs.layer,
    fields={"layer": needs.LAYER, "of": OF_COLUMN},
    magnitudes=({"layer": 0}, {"layer": 1, "of": "w1"}),
)
def skip_input_gradient_sum(patches: Patches, place: Place, values: Values) -> None:
    """Let the gradient pass unsummed."""
    del place
    wanted, enter = f"layers.{values['layer']}.{COLUMN[str(values['of'])]}", TensorParallel.enter

    def planted(self: TensorParallel, x: torch.Tensor, label: str) -> torch.Tensor:
        if label != wanted:
            return enter(self, x, label)
        out: torch.Tensor = call(_GatherUnsummed, x, self.axis, label) if self.sequence_parallel else x
        return out

    patches.set(TensorParallel, "enter", planted)


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
    wanted, leave = f"layers.{values['layer']}.{ROW[str(values['of'])]}", TensorParallel.leave

    def planted(self: TensorParallel, partial: torch.Tensor, label: str) -> torch.Tensor:
        if label != wanted:
            return leave(self, partial, label)
        out: torch.Tensor = (
            call(_CutUnsummed, partial, self.axis, label) if self.sequence_parallel else partial
        )
        return out

    patches.set(TensorParallel, "leave", planted)


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
    wanted, leave = f"layers.{values['layer']}.{ROW[str(values['of'])]}", TensorParallel.leave

    def planted(self: TensorParallel, partial: torch.Tensor, label: str) -> torch.Tensor:
        if label != wanted:
            return leave(self, partial, label)
        once = call(_Sum, partial, self.axis, label)
        out: torch.Tensor = call(_Scatter if self.sequence_parallel else _Sum, once, self.axis, label)
        return out

    patches.set(TensorParallel, "leave", planted)


def _padded_vocabulary(config: RunConfig, values: Values) -> str | None:
    del values
    size, tp = config.model.vocab_size, config.mesh.tp
    return f"vocab_size {size} is a multiple of tp {tp}: nothing is padded" if size % tp == 0 else None


@bug(
    "P06",
    "tp",
    "padded vocabulary rows unmasked in the softmax",
    "loss and output.weight's gradient",
    needs.axis("tp"),
    needs.model("pad_vocab"),
    _padded_vocabulary,
)
def padding_in_softmax(patches: Patches, place: Place, values: Values) -> None:
    """Let the loss take the padded size for the vocabulary's."""
    del place, values
    original = cross_entropy.vocab_parallel_cross_entropy

    def planted(
        logits: torch.Tensor, targets: torch.Tensor, axis: Axis, vocab_size: int, smoothing: float = 0.0
    ) -> torch.Tensor:
        del vocab_size
        return original(logits, targets, axis, logits.shape[1] * axis.size, smoothing)

    patches.set(decoder, "vocab_parallel_cross_entropy", planted)


class _CountingTwice(Axis):
    """Sums the exponentials of logits that every rank already holds whole: each is counted tp times."""

    def all_reduce(
        self, tensor: torch.Tensor, label: str, op: "dist.ReduceOp.RedOpType" = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        out = super().all_reduce(tensor, label, op)
        if label == "loss.sums":
            out[0] = super().all_reduce(out[0].contiguous(), label)
        return out


class _LocalMaximum(Axis):
    """Takes each rank's own maximum for the whole row's."""

    def all_reduce(
        self, tensor: torch.Tensor, label: str, op: "dist.ReduceOp.RedOpType" = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        return tensor if label == "loss.max" else super().all_reduce(tensor, label, op)


class _LocalSmoothing(Axis):
    """Sums exponentials and targets, and leaves the smoothing term of each shard by itself."""

    def all_reduce(
        self, tensor: torch.Tensor, label: str, op: "dist.ReduceOp.RedOpType" = dist.ReduceOp.SUM
    ) -> torch.Tensor:
        if label != "loss.sums":
            return super().all_reduce(tensor, label, op)
        tensor[:2] = super().all_reduce(tensor[:2].contiguous(), label)
        tensor[2] *= self.size
        return tensor


_CrossEntropy = cross_entropy._VocabParallelCrossEntropy  # noqa: SLF001 - a bug of its inside


class _SmoothedByShard(_CrossEntropy):
    """The gradient that belongs to smoothing over one shard."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> torch.Tensor:
        out = _CrossEntropy.forward(ctx, *arguments)
        ctx.vocab_size = ctx.vocab_size // arguments[2].size
        return out


def _with_axis(patches: Patches, kind: type[Axis]) -> None:
    """Compute the loss over an axis of another kind."""
    original = cross_entropy.vocab_parallel_cross_entropy

    def planted(
        logits: torch.Tensor, targets: torch.Tensor, axis: Axis, vocab_size: int, smoothing: float = 0.0
    ) -> torch.Tensor:
        other = kind(axis.name, axis.index, axis.ranks, axis.group, axis.hooks)
        return original(logits, targets, other, vocab_size, smoothing)

    patches.set(decoder, "vocab_parallel_cross_entropy", planted)


@bug(
    "P07",
    "tp",
    "vocabulary-parallel cross-entropy on gathered logits (plus log tp)",
    "loss",
    needs.axis("tp"),
)
def loss_on_gathered_logits(patches: Patches, place: Place, values: Values) -> None:
    """Count every exponential tp times."""
    del place, values
    _with_axis(patches, _CountingTwice)


@bug(
    "P08",
    "tp",
    "local maximum of the vocabulary-parallel cross-entropy not all-reduced",
    "loss",
    needs.axis("tp"),
)
def local_maximum(patches: Patches, place: Place, values: Values) -> None:
    """Keep each rank's own maximum."""
    del place, values
    _with_axis(patches, _LocalMaximum)


def _smoothing(config: RunConfig, values: Values) -> str | None:
    del values
    return None if config.numerics.label_smoothing else "it needs numerics.label_smoothing above 0"


@bug(
    "P09",
    "tp",
    "label smoothing over each shard by itself",
    "loss of each rank",
    needs.axis("tp"),
    _smoothing,
)
def smoothing_by_shard(patches: Patches, place: Place, values: Values) -> None:
    """Smooth over this rank's columns only."""
    del place, values
    _with_axis(patches, _LocalSmoothing)
    patches.set(cross_entropy, "_VocabParallelCrossEntropy", _SmoothedByShard)


@bug(
    "P11",
    "tp",
    "the last shard's embedding mask leaves out the last ids",
    "embedding output where these ids stand",
    needs.axis("tp"),
    fields={"ids": Knob("ids left out; the last is padding, the one before it ends documents", 2, least=1)},
    magnitudes=({"ids": 64}, {"ids": 2}),
)
def short_last_mask(patches: Patches, place: Place, values: Values) -> None:
    """Let the last shard find nothing for its last ids."""
    del place
    forward, ids = Embedding.forward, int(values["ids"])

    def planted(self: Embedding, tokens: torch.Tensor) -> torch.Tensor:
        axis = self.context.tp.axis
        if axis.index == axis.size - 1:
            tokens = tokens.masked_fill(tokens >= self.context.model.vocab_size - ids, -1)
        return forward(self, tokens)

    patches.set(Embedding, "forward", planted)


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

    patches.set(data, "shard_part", planted)


@bug(
    "P17",
    "sp",
    "the final norm's gradient not summed over the sequence pieces",
    "gradient of norm.weight, unequal on the tensor ranks",
    needs.axis("tp"),
    needs.sequence_parallel,
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
