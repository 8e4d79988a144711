"""Sizes of the model's parts on one tensor-parallel rank, which the cost and the memory model share.

They follow `reftrain.model`: key/value heads are copied where there are fewer than tp, the vocabulary is
padded to equal rows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from reftrain.config.run import EncoderConfig, ModelConfig, RunConfig


@dataclass(frozen=True)
class Shapes:
    """Rows, columns and parameters of one tensor rank's part of the model; its part of the experts, over `ep`."""

    model: ModelConfig
    tp: int
    ep: int = 1

    @property
    def heads(self) -> int:
        """Query heads of a rank."""
        return max(self.model.heads // self.tp, 1)

    @property
    def kv_heads(self) -> int:
        """Key/value heads of a rank, copies included."""
        return max(self.model.kv_heads // self.tp, 1)

    @property
    def attention_columns(self) -> int:
        """Width of the queries, and of attention's output."""
        return self.heads * self.model.head_dim

    @property
    def kv_columns(self) -> int:
        """Width of the keys, and of the values."""
        return self.kv_heads * self.model.head_dim

    @property
    def qkv_columns(self) -> int:
        """Width of queries, keys and values together."""
        return self.attention_columns + 2 * self.kv_columns

    @property
    def ffn_columns(self) -> int:
        """Inner width of the feed-forward."""
        return self.model.ffn_dim // self.tp

    @property
    def vocab_rows(self) -> int:
        """Rows of the vocabulary, padding included."""
        return -(-self.model.vocab_size // self.tp)

    @property
    def layer_matrices(self) -> int:
        """Elements of the matrices of one layer."""
        model, held = self.model, 1
        if model.experts:
            held = model.experts // self.ep + model.shared_expert
        columns = self.qkv_columns + self.attention_columns + 3 * self.ffn_columns * held
        return model.dim * (columns + model.experts)

    @property
    def layer_vectors(self) -> int:
        """Elements of norms and biases of one layer."""
        count = 2 * self.model.dim
        if self.model.qk_norm:
            count += 2 * self.model.head_dim
        if self.model.bias:
            count += self.qkv_columns + self.model.dim + 2 * self.ffn_columns + self.model.dim
        return count

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        return self.layer_matrices + self.layer_vectors

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding."""
        return self.vocab_rows * self.model.dim

    @property
    def head_parameters(self) -> int:
        """Parameters of the output projection and the norm before it."""
        return self.vocab_rows * self.model.dim + self.model.dim

    def stage_parameters(self, layers: int, *, first: bool, last: bool) -> int:
        """Parameters of a pipeline stage."""
        count = layers * self.layer_parameters
        return count + first * self.embedding_parameters + last * self.head_parameters

    def trained_parameters(self, shape: "StageShape") -> int:
        """Parameters of a pipeline stage that have gradients."""
        if not self.model.frozen:
            return self.stage_parameters(shape.layers, first=shape.first, last=shape.last)
        return shape.counts.get("cross", 0) * self.layer_parameters


LayerKind = Literal["layer", "cross", "frozen", "unreached"]
"""A layer that trains, a cross-attention layer, one without gradients of weights, one that backward never reaches.

A new kind has its operations in `CostModel.layer`.
"""


def kind_of(model: ModelConfig, layer: int) -> LayerKind:
    """Return the kind of a layer of the whole model."""
    if model.crosses(layer):
        return "cross"
    if model.trains(layer):
        return "layer"
    return "frozen" if model.passes_gradient(layer) else "unreached"


@dataclass(frozen=True)
class StageShape:
    """The parts of a virtual stage: a number of layers, and the embedding or the head at the ends.

    `kinds` names the kind of every layer; empty where all are plain ones.
    """

    layers: int
    first: bool
    last: bool
    kinds: tuple[LayerKind, ...] = ()

    def kind(self, layer: int) -> LayerKind:
        """Return the kind of a layer, counted within the stage."""
        return self.kinds[layer] if self.kinds else "layer"

    @property
    def counts(self) -> dict[LayerKind, int]:
        """Number of layers by kind."""
        return dict(Counter(self.kinds)) if self.kinds else {"layer": self.layers}


def stage_shapes(layers: Sequence[int], model: ModelConfig | None = None) -> tuple[StageShape, ...]:
    """Shapes of all virtual stages from their numbers of layers, with the kinds of a `model` that has several."""
    end = len(layers) - 1
    shapes, begin = [], 0
    for stage, count in enumerate(layers):
        several = model is not None and model.cross_every
        kinds = tuple(kind_of(model, begin + n) for n in range(count)) if model and several else ()
        shapes.append(StageShape(count, first=stage == 0, last=stage == end, kinds=kinds))
        begin += count
    return tuple(shapes)


def encoder_parameters(encoder: EncoderConfig, model: ModelConfig, tp: int) -> int:
    """Parameters of the image encoder on one tensor rank; 0 for a text model."""
    if not encoder.layers:
        return 0
    layer = encoder.dim * ((4 * encoder.dim + 2 * encoder.ffn_dim) // tp + 2)
    ends = encoder.dim * (encoder.patch + encoder.tokens + 1 + model.dim)
    return encoder.layers * layer + ends


def layer_counts(layers: int, stages: int, *, balanced: bool, group: int = 1) -> tuple[int, ...]:
    """Layers of every virtual stage as `reftrain.model.decoder.layers_of_stages` deals them.

    They are even, and the first stages take the remainder; `balanced` counts embedding and head as a layer each,
    `group` layers stay together.
    """
    total = layers // group + (2 if balanced else 0)
    counts = [total // stages + (stage < total % stages) for stage in range(stages)]
    if balanced:
        counts[0] -= 1
        counts[-1] -= 1
    return tuple(group * count for count in counts)


def layers_of_run(config: RunConfig) -> tuple[int, ...]:
    """Layers of every virtual stage of a run."""
    if config.pipeline.layers_per_stage:
        return config.pipeline.layers_per_stage
    return layer_counts(
        config.model.layers, config.stages, balanced=config.pipeline.balanced, group=config.model.group
    )
