"""The declared parameters of the model: names, global shapes, split over tp, and the stage that holds them."""

import math
from dataclasses import dataclass, replace

from reftrain.config.run import RunConfig
from reftrain.layout.grid import EVERYWHERE
from reftrain.layout.pipeline import Pipeline

STD = 0.02


@dataclass(frozen=True)
class Parameter:
    """A parameter of the whole model.

    `split` is the dimension cut over `tp` (None: every tensor rank holds all), in pieces of `size`, padding
    included. `copies` tensor ranks hold the same piece. `sums` is tp or kv where the gradient is still
    partial after data parallelism, else empty. `std` of 0 means ones. `tied` shares another's first values.
    Every `zero_columns`-th column starts as -0.0. `dealt` is the place on ep of the ranks that hold it.
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
    dealt: int = EVERYWHERE

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
        self.sequence_parallel = config.mesh.sequence_parallel and self.tp > 1
        self.outside = "tp" if self.sequence_parallel else ""
        self.vocab_rows = -(-config.model.vocab_size // self.tp)

    def stages(self) -> list[range]:
        """Return the layers of every virtual stage; the first stages take the remainder."""
        pipeline, count = self.config.pipeline, self.config.stages
        given = list(pipeline.layers_per_stage)
        if not given:
            ends = 1 if pipeline.balanced else 0
            total = self.config.model.layers + 2 * ends
            given = [total // count + (1 if stage < total % count else 0) for stage in range(count)]
            given[0] -= ends
            given[-1] -= ends
        stages, first = [], 0
        for number in given:
            stages.append(range(first, first + number))
            first += number
        return stages

    def units(self, stage: int) -> list[tuple[str, list[Parameter]]]:
        """Return a virtual stage's parameters by reduction unit: each layer, then the stage's own parameters.

        Experts that ep deals out are units of their own, one for each place on ep, after their layer.
        """
        layers = [unit for number in self.stages()[stage] for unit in self._layer_units(number)]
        own = []
        if stage == 0:
            own.append(self.vocabulary("tok_embeddings.weight"))
        if stage + 1 == self.config.stages:
            own += [
                self.norm("norm.weight", self.outside),
                self.vocabulary(
                    "output.weight", "tok_embeddings.weight" if self.config.model.tied_embeddings else ""
                ),
            ]
        return [*layers, ("stage", own)] if own else layers

    def _layer_units(self, number: int) -> list[tuple[str, list[Parameter]]]:
        name, parameters = f"layers.{number}", self.layer(number)
        places = range(self.config.mesh.ep if self.config.mesh.ep > 1 else 0)
        dealt = [[p for p in parameters if p.dealt == place] for place in places]
        own = [p for p in parameters if p.dealt == EVERYWHERE]
        return [(name, own), *((f"{name}.feed_forward.experts", of_place) for of_place in dealt)]

    def in_order(self, stage: int, place: int = EVERYWHERE) -> list[Parameter]:
        """Return a stage's parameters in the model's order: embedding, layers, final norm, output.

        Given a place on ep, only the parameters that its ranks hold.
        """
        own = dict(self.units(stage)).get("stage", [])
        first = [p for p in own if p.name == "tok_embeddings.weight"]
        last = [p for p in own if p.name != "tok_embeddings.weight"]
        layers = [p for number in self.stages()[stage] for p in self.layer(number)]
        held = {EVERYWHERE, place}
        return first + [p for p in layers if place == EVERYWHERE or p.dealt in held] + last

    def norm(self, name: str, sums: str, width: int = 0) -> Parameter:
        """Weight of a norm over `width` features, or over the model's."""
        return Parameter(name, (width or self.config.model.dim,), 0.0, sums=sums)

    def vocabulary(self, name: str, tied: str = "") -> Parameter:
        """Embedding or output matrix, cut over tp by padded rows."""
        model = self.config.model
        zeros = model.zero_columns if "tok_embeddings.weight" in {name, tied} else 0
        shape = model.vocab_size, model.dim
        return Parameter(name, shape, STD, 0, self.vocab_rows, tied=tied, zero_columns=zeros)

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
        return out + (self._experts if model.experts else self._feed_forward)(f"{pre}.feed_forward")

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
