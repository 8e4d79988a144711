"""The declared parameters of the model: names, global shapes, split over tp, and the stage that holds them."""

import math
from dataclasses import dataclass, replace

from reftrain.config.run import RunConfig
from reftrain.layout.grid import EVERYWHERE
from reftrain.layout.pipeline import Pipeline

STD = 0.02
ENCODER = -1
"""Number of the image encoder among the stages."""


@dataclass(frozen=True)
class Parameter:
    """A parameter of the whole model.

    `split` is the dimension cut over `tp` (None: every tensor rank holds all), in pieces of `size`, padding
    included. `copies` tensor ranks hold the same piece. `sums` is tp or kv where the gradient is still
    partial after data parallelism, else empty. `std` of 0 means ones. `tied` shares another's first values.
    Every `zero_columns`-th column starts as -0.0. `dealt` is the place on ep of the ranks that hold it. `frozen` ones
    have no gradient. `data_dim` is the dimension that data parallelism shards; None where it leaves the parameter
    whole, and sums its gradient apart.
    """

    name: str
    shape: tuple[int, ...]
    std: float
    split: int | None = None
    size: int = 0
    copies: int = 1
    sums: str = ""
    tied: str = ""
    zero_columns: int = 0
    frozen: bool = False
    dealt: int = EVERYWHERE
    data_dim: int | None = 0

    def summed_over(self, axis: str) -> bool:
        """Whether the gradient is still partial over an axis after FSDP2's reduction."""
        return axis == self.sums or (axis == "dp_cp" and self.data_dim is None)

    def shard(self, ranks: int, index: int) -> tuple[int, int, int]:
        """Return the dimension, first place and length of one of `ranks` shards of a tensor rank's piece."""
        dim = self.data_dim or 0
        if self.data_dim is None:
            return dim, 0, self.local_shape[dim]
        return (dim, *shard_rows(self.local_shape[dim], ranks, index))

    def shard_elements(self, ranks: int, index: int | None = None) -> int:
        """Return the elements of a shard, or of the longest one, to which all are padded in a reduction."""
        dim, _, count = self.shard(ranks, 0 if index is None else index)
        return math.prod(count if d == dim else n for d, n in enumerate(self.local_shape))

    def piece(self, tp: int) -> tuple[slice, ...]:
        """Return the slices of the global tensor that a tensor rank holds; padding lies outside them."""
        box = [slice(0, n) for n in self.shape]
        if self.split is not None:
            start = tp // self.copies * self.size
            end = min(start + self.size, self.shape[self.split])
            box[self.split] = slice(min(start, end), end)
        return tuple(box)

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of one tensor rank's piece, padding included."""
        return tuple(self.size if dim == self.split else n for dim, n in enumerate(self.shape))


class Declaration:
    """The model's parameters as the configuration declares them."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.pipeline = config, Pipeline(config)
        self.tp = config.mesh.tp
        self.sequence_parallel = config.mesh.splits_sequence
        self.outside = "tp" if self.sequence_parallel else ""
        self.vocab_rows = -(-config.model.vocab_size // self.tp)

    def stages(self) -> list[range]:
        """Return the layers of every virtual stage; the first stages take the remainder."""
        pipeline, count = self.config.pipeline, self.config.stages
        given = list(pipeline.layers_per_stage)
        if not given:
            ends = 1 if pipeline.balanced else 0
            group = self.config.model.group
            total = self.config.model.layers // group + 2 * ends
            given = [total // count + (1 if stage < total % count else 0) for stage in range(count)]
            given[0] -= ends
            given[-1] -= ends
            given = [number * group for number in given]
        stages, first = [], 0
        for number in given:
            stages.append(range(first, first + number))
            first += number
        return stages

    @property
    def numbers(self) -> range:
        """Numbers of all stages: -1 for the image encoder of a model that has one, then the virtual stages."""
        return range(ENCODER if self.config.encoder.layers else 0, self.config.stages)

    def units(self, stage: int) -> list[tuple[str, list[Parameter]]]:
        """Return a stage's trained parameters by reduction unit: each layer, then the stage's own sharded parameters.

        Experts that ep deals out are units of their own, one for each place on ep, after their layer.
        """
        units = [unit for layer in self._layers(stage) for unit in self._by_place(*layer)]
        units.append(("encoder" if stage == ENCODER else "stage", self._own(stage)))
        kept = (
            (unit, [p for p in parameters if not p.frozen and p.data_dim is not None])
            for unit, parameters in units
        )
        return [(unit, parameters) for unit, parameters in kept if parameters]

    def in_order(self, stage: int, place: int = EVERYWHERE) -> list[Parameter]:
        """Return a stage's parameters in the model's order: embedding, layers, final norm, output.

        Given a place on ep, only the parameters that its ranks hold.
        """
        own, starts = self._own(stage), ("tok_embeddings.", "encoder.patches.")
        first = [p for p in own if p.name.startswith(starts)]
        last = [p for p in own if not p.name.startswith(starts)]
        layers = [p for _, parameters in self._layers(stage) for p in parameters]
        held = {EVERYWHERE, place}
        return first + [p for p in layers if place == EVERYWHERE or p.dealt in held] + last

    def trained(self, stage: int, place: int = EVERYWHERE) -> list[Parameter]:
        """Return the parameters of `in_order` that have gradients."""
        return [p for p in self.in_order(stage, place) if not p.frozen]

    def _layers(self, stage: int) -> list[tuple[str, list[Parameter]]]:
        if stage == ENCODER:
            return [
                (f"encoder.layers.{n}", self._encoder_layer(n)) for n in range(self.config.encoder.layers)
            ]
        return [(f"layers.{number}", self.layer(number)) for number in self.stages()[stage]]

    def _by_place(self, name: str, parameters: list[Parameter]) -> list[tuple[str, list[Parameter]]]:
        places = range(self.config.mesh.ep if self.config.mesh.ep > 1 else 0)
        dealt = [[p for p in parameters if p.dealt == place] for place in places]
        own = [p for p in parameters if p.dealt == EVERYWHERE]
        return [(name, own), *((f"{name}.feed_forward.experts", of_place) for of_place in dealt)]

    def _own(self, stage: int) -> list[Parameter]:
        """Return the parameters of a stage outside its layers."""
        if stage == ENCODER:
            return self._encoder_ends()
        own: list[Parameter] = []
        if stage == 0:
            own.append(self.vocabulary("tok_embeddings.weight"))
        if stage + 1 == self.config.stages:
            own += [
                self.norm("norm.weight", self.outside),
                self.vocabulary(
                    "output.weight", "tok_embeddings.weight" if self.config.model.tied_embeddings else ""
                ),
            ]
        return [replace(p, frozen=self.config.model.frozen) for p in own]

    def _encoder_weight(self, name: str, *shape: int, split: int | None = None) -> Parameter:
        size = 0 if split is None else shape[split] // self.tp
        return Parameter(f"encoder.{name}", shape, STD, split, size)

    def _encoder_layer(self, number: int) -> list[Parameter]:
        """Parameters of one layer of the image encoder: heads and inner width cut over tp."""
        config, pre, weight = self.config.encoder, f"layers.{number}", self._encoder_weight
        dim, inner = config.dim, config.ffn_dim
        return [
            self.norm(f"encoder.{pre}.attention_norm.weight", "", dim),
            *(weight(f"{pre}.attention.{w}.weight", dim, dim, split=0) for w in ("wq", "wk", "wv")),
            weight(f"{pre}.attention.wo.weight", dim, dim, split=1),
            self.norm(f"encoder.{pre}.ffn_norm.weight", "", dim),
            weight(f"{pre}.feed_forward.w1.weight", inner, dim, split=0),
            weight(f"{pre}.feed_forward.w2.weight", dim, inner, split=1),
        ]

    def _encoder_ends(self) -> list[Parameter]:
        """Parameters of the image encoder outside its layers, whole on every tensor rank."""
        config, weight = self.config.encoder, self._encoder_weight
        return [
            weight("patches.weight", config.dim, config.patch),
            weight("patches.positions", config.tokens, config.dim),
            self.norm("encoder.norm.weight", "", config.dim),
            weight("projection.weight", self.config.model.dim, config.dim),
        ]

    def norm(self, name: str, sums: str, width: int = 0) -> Parameter:
        """Weight of a norm over `width` features, or over the model's."""
        whole = self.config.mesh.annotated
        sums = "tp" if whole and self.tp > 1 else sums
        return Parameter(
            name, (width or self.config.model.dim,), 0.0, sums=sums, data_dim=None if whole else 0
        )

    def vocabulary(self, name: str, tied: str = "") -> Parameter:
        """Embedding or output matrix, cut over tp by padded rows."""
        model = self.config.model
        zeros = model.zero_columns if "tok_embeddings.weight" in {name, tied} else 0
        shape, columns = (model.vocab_size, model.dim), int(self.config.mesh.annotated)
        return Parameter(
            name, shape, STD, 0, self.vocab_rows, tied=tied, zero_columns=zeros, data_dim=columns
        )

    def _columns(self, name: str, rows: int) -> list[Parameter]:
        """Return the parameters of a projection with an output that is cut over tp."""
        size = rows // self.tp
        weight = Parameter(f"{name}.weight", (rows, self.config.model.dim), STD, 0, size)
        return [weight, Parameter(f"{name}.bias", (rows,), STD, 0, size)][: 1 + self.config.model.bias]

    def _keys(self, name: str) -> list[Parameter]:
        """Key or value projection: cut by heads, copied where there are fewer heads than tensor ranks."""
        model = self.config.model
        rows = model.kv_heads * model.head_dim
        if model.kv_heads >= self.tp:
            return self._columns(name, rows)
        copies, width = self.tp // model.kv_heads, model.head_dim
        weight = Parameter(f"{name}.weight", (rows, model.dim), STD, 0, width, copies, "kv")
        return [weight, Parameter(f"{name}.bias", (rows,), STD, 0, width, copies, "kv")][: 1 + model.bias]

    def _row(self, name: str, columns: int) -> list[Parameter]:
        """Return the parameters of a projection into the residual stream, with an input that is cut over tp."""
        model = self.config.model
        std = STD / math.sqrt(2 * model.layers)
        weight = Parameter(f"{name}.weight", (model.dim, columns), std, 1, columns // self.tp)
        return [weight, Parameter(f"{name}.bias", (model.dim,), STD, sums=self.outside)][: 1 + model.bias]

    def layer(self, number: int) -> list[Parameter]:
        """Parameters of one decoder layer, as the model names them."""
        model, pre = self.config.model, f"layers.{number}"
        qkv = f"{pre}.attention.qkv"
        out = [self.norm(f"{pre}.attention_norm.weight", self.outside)]
        if model.fused_qkv:
            groups = model.heads // model.kv_heads
            out += self._columns(f"{qkv}.wqkv", model.kv_heads * (groups + 2) * model.head_dim)
        else:
            out += self._columns(f"{qkv}.wq", model.heads * model.head_dim)
            out += self._keys(f"{qkv}.wk") + self._keys(f"{qkv}.wv")
        if model.qk_norm:
            inside = "tp" if self.tp > 1 else ""
            out += [self.norm(f"{qkv}.{n}.weight", inside, model.head_dim) for n in ("q_norm", "k_norm")]
        out += self._row(f"{pre}.attention.wo", model.heads * model.head_dim)
        out.append(self.norm(f"{pre}.ffn_norm.weight", self.outside))
        out += (self._experts if model.experts else self._feed_forward)(f"{pre}.feed_forward")
        if self.config.mesh.annotated:
            out = [self._annotated(p) for p in out]
        return [replace(p, frozen=not model.trains(number)) for p in out]

    def _annotated(self, parameter: Parameter) -> Parameter:
        """Return a layer's matrix cut over model and data as SPMD 2-D does; attention's are turned.

        Source: "Llama 2 with PyTorch/XLA SPMD", table 1: q, k, v and down are (data, model), o, gate and up
        (model, data).
        """
        if parameter.data_dim is None:
            return parameter
        model_dim = 1 if parameter.name.rsplit(".", 2)[-2] in {"wq", "wk", "wv", "w2"} else 0
        size = parameter.shape[model_dim] // self.tp
        return replace(parameter, split=model_dim, size=size, data_dim=1 - model_dim, sums="", copies=1)

    def _feed_forward(self, name: str) -> list[Parameter]:
        width = self.config.model.ffn_dim
        columns = self._columns(f"{name}.w1", width) + self._columns(f"{name}.w3", width)
        return columns + self._row(f"{name}.w2", width)

    def _experts(self, name: str) -> list[Parameter]:
        """Router, experts by number, shared expert. Consecutive experts have one place on ep."""
        model, ep = self.config.model, self.config.mesh.ep
        inside = "tp" if self.tp > 1 else ""
        out = [Parameter(f"{name}.router.weight", (model.experts, model.dim), STD, sums=inside)]
        for number in range(model.experts):
            place = number // (model.experts // ep) if ep > 1 else EVERYWHERE
            out += [replace(p, dealt=place) for p in self._feed_forward(f"{name}.experts.{number}")]
        return out + (self._feed_forward(f"{name}.shared") if model.shared_expert else [])


def shard_rows(rows: int, ranks: int, index: int) -> tuple[int, int]:
    """Return first row and number of rows of one of `ranks` shards: FSDP2 cuts rows evenly, rounded up."""
    each = -(-rows // ranks)
    first = min(index * each, rows)
    return first, min(each, rows - first)
