"""What `mesh.sharding = "spmd_2d"` excludes: axes, parts of the model and settings that its table does not annotate."""

from collections.abc import Iterator

from reftrain.config.tables import Tables
from reftrain.errors import ConfigError
from reftrain.schedule.registry import SCHEMES

Refusal = tuple[object, str, str, str]
"""Truth of a contradiction, its field, what is wrong, and the remedy."""


def check_spmd(config: Tables) -> None:
    """Raise `ConfigError` for the first setting that two annotated axes exclude; silent for other shardings."""
    if not config.mesh.annotated:
        return
    for wrong, field, problem, remedy in (*_axes(config), *_sizes(config), *_parts(config)):
        if wrong:
            raise ConfigError(field, f"spmd_2d {problem}", f"{remedy}, or mesh.sharding = fsdp")


def _axes(config: Tables) -> Iterator[Refusal]:
    mesh = config.mesh
    yield (
        mesh.cp > 1,
        "mesh.cp",
        "annotates data (dp) and model (tp), and leaves sequences whole",
        "set it to 1",
    )
    yield mesh.pp > 1, "mesh.pp", "has no pipeline: every rank computes all layers", "set it to 1"
    yield mesh.ep > 1, "mesh.ep", "has no axis for experts", "set it to 1"
    yield mesh.replicates, "mesh.zero", "shards every matrix over dp", "choose 1 to 3"
    yield mesh.dp_shard, "mesh.dp_shard", "shards over the whole data axis", "leave it out"


def _sizes(config: Tables) -> Iterator[Refusal]:
    model, mesh = config.model, config.mesh
    for axis, size in (("dp", mesh.dp), ("tp", mesh.tp)):
        problem = f"cuts the model width {model.dim}, which {axis} {size} does not divide"
        yield model.dim % size, f"mesh.{axis}", problem, f"choose {axis} among its divisors"
    problem = f"cuts {model.kv_heads} key/value heads over tp {mesh.tp}, and copies none"
    yield model.kv_heads % mesh.tp, "mesh.tp", problem, "choose a divisor of model.kv_heads"


def _parts(config: Tables) -> Iterator[Refusal]:
    model, numerics, scheme = config.model, config.numerics, SCHEMES[config.pipeline.schedule]
    yield model.experts, "model.experts", "has no annotation of experts", "set it to 0"
    yield model.cross_every, "model.cross_every", "has no annotation of image tokens", "set it to 0"
    yield model.bias, "model.bias", "annotates no biases", "set it to false"
    yield model.qk_norm, "model.qk_norm", "annotates no norms of heads", "set it to false"
    yield model.fused_qkv, "model.fused_qkv", "annotates three projections", "set it to false"
    yield model.tied_embeddings, "model.tied_embeddings", "annotates two matrices", "set it to false"
    wide = numerics.tp_reduce != "compute"
    yield wide, "numerics.tp_reduce", "sums in the format of the computation", "set it to compute"
    shadow = config.evidence.shadow_gradients
    yield shadow, "evidence.shadow_gradients", "has no whole buffer to shadow", "set it to false"
    plain = scheme.synchronous and not scheme.splits_backward and "pipelines" not in scheme.options
    problem = f"runs whole backwards of one model, not {config.pipeline.schedule}"
    yield not plain, "pipeline.schedule", problem, "choose flexible or 1f1b"
