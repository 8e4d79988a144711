"""Sizes of the model's parts on one tensor-parallel rank, which the cost and the memory model share.

They follow `reftrain.model`: key/value heads are copied where there are fewer than tp, the vocabulary is
padded to equal rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from reftrain.config.run import ModelConfig, RunConfig


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


@dataclass(frozen=True)
class StageShape:
    """The parts of a virtual stage: a number of layers, and the embedding or the head at the ends."""

    layers: int
    first: bool
    last: bool


def stage_shapes(layers: Sequence[int]) -> tuple[StageShape, ...]:
    """Shapes of all virtual stages from their numbers of layers."""
    end = len(layers) - 1
    return tuple(StageShape(count, first=i == 0, last=i == end) for i, count in enumerate(layers))


def layer_counts(layers: int, stages: int, *, balanced: bool) -> tuple[int, ...]:
    """Layers of every virtual stage as `reftrain.model.decoder.layers_of_stages` deals them.

    They are even, and the first stages take the remainder; `balanced` counts embedding and head as a layer each.
    """
    total = layers + (2 if balanced else 0)
    counts = [total // stages + (stage < total % stages) for stage in range(stages)]
    if balanced:
        counts[0] -= 1
        counts[-1] -= 1
    return tuple(counts)


def layers_of_run(config: RunConfig) -> tuple[int, ...]:
    """Layers of every virtual stage of a run."""
    if config.pipeline.layers_per_stage:
        return config.pipeline.layers_per_stage
    return layer_counts(config.model.layers, config.stages, balanced=config.pipeline.balanced)
