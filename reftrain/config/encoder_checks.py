"""What contradicts an image encoder and cross-attention layers: in the model itself, and in its spread over ranks."""

from collections.abc import Iterator

from reftrain.config.tables import Tables
from reftrain.errors import ConfigError
from reftrain.schedule.registry import SCHEMES

Refusal = tuple[bool, ConfigError]
"""Whether the configuration is wrong, and what is said then."""


def check_encoder(config: Tables) -> None:
    """Raise `ConfigError` for an encoder that no layer reads, cross-attention without one, and what cannot train."""
    for refusals in (_of_images(config), _of_layers(config), _of_stages(config), _of_schedule(config)):
        for wrong, refusal in refusals:
            if wrong:
                raise refusal


def _of_images(config: Tables) -> Iterator[Refusal]:
    """Yield what must go together: encoder, layers that read its tokens, and a frozen text."""
    model, encodes, crosses = config.model, config.encoder.layers > 0, config.model.cross_every > 0
    yield (
        encodes and not crosses,
        ConfigError(
            "model.cross_every",
            "no layer reads the encoder's tokens",
            "give for example 4, or encoder.layers = 0",
        ),
    )
    yield (
        crosses and not encodes,
        ConfigError(
            "encoder.layers",
            "cross-attention has no image tokens",
            "give 1 or more, or model.cross_every = 0",
        ),
    )
    yield (
        model.frozen and not crosses,
        ConfigError(
            "model.frozen",
            "leaves a text model nothing to train",
            "set it to false, or give model.cross_every",
        ),
    )
    yield (
        crosses and model.experts > 0,
        ConfigError(
            "model.experts",
            "cannot be combined with cross-attention layers yet",
            "give 0, or set model.cross_every, model.frozen and encoder.layers to 0",
        ),
    )


def _of_layers(config: Tables) -> Iterator[Refusal]:
    """Yield what the layers of such a model cannot be."""
    model, crosses = config.model, config.model.cross_every > 0
    yield (
        crosses and model.layers % model.group > 0,
        ConfigError(
            "model.layers",
            f"{model.layers} are no whole groups of {model.cross_every} + 1",
            f"give a multiple of {model.group}",
        ),
    )
    yield (
        crosses and model.fused_qkv,
        ConfigError(
            "model.fused_qkv", "cross-attention takes queries and keys of two inputs", "set it to false"
        ),
    )
    yield (
        model.frozen and model.tied_embeddings,
        ConfigError("model.tied_embeddings", "ties weights that do not train", "set it to false"),
    )


def _of_stages(config: Tables) -> Iterator[Refusal]:
    """Yield how layers and heads cannot be dealt to ranks."""
    model, encoder, tp, pipeline = config.model, config.encoder, config.mesh.tp, config.pipeline
    crosses = model.cross_every > 0
    cut = any(n % model.group or not n for n in pipeline.layers_per_stage)
    yield (
        crosses and cut,
        ConfigError(
            "pipeline.layers_per_stage",
            f"a virtual stage holds whole groups of {model.cross_every} + 1 layers",
            f"give multiples of {model.group}",
        ),
    )
    yield (
        crosses and pipeline.balanced,
        ConfigError(
            "pipeline.balanced",
            "would cut a group of layers",
            "set it to false, or name pipeline.layers_per_stage",
        ),
    )
    yield (
        encoder.layers > 0 and (encoder.heads % tp or encoder.ffn_dim % tp) > 0,
        ConfigError(
            "encoder.heads",
            f"{encoder.heads} heads and ffn_dim {encoder.ffn_dim} are split over tp {tp}",
            f"choose multiples of {tp}",
        ),
    )


def _of_schedule(config: Tables) -> Iterator[Refusal]:
    """Yield the schemes that cannot run an encoder around their table."""
    encodes, scheme = config.encoder.layers > 0, SCHEMES[config.pipeline.schedule]
    yield (
        encodes and not scheme.synchronous,
        ConfigError(
            "pipeline.schedule",
            f"{scheme.name} is never flushed, and images are encoded before each step",
            "choose flexible",
        ),
    )
    yield (
        encodes and scheme.splits_backward,
        ConfigError(
            "pipeline.schedule",
            f"{scheme.name} splits backwards, which loses the gradients of image tokens",
            "choose flexible",
        ),
    )
