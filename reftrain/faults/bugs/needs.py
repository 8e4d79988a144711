"""Checks of a layout against a planted bug: each returns what is missing, or None."""

from reftrain.config.run import RunConfig
from reftrain.faults.bugs.bug import BugField, Check, Values

LAYER = BugField("layer that has the bug", 0)


def axis(name: str, least: int = 2) -> Check:
    """Return the check that an axis has at least `least` ranks."""

    def check(config: RunConfig, values: Values) -> str | None:
        del values
        size = config.mesh.sizes[name]
        return f"{name} is {size}: it shows from {name} {least} on" if size < least else None

    return check


def model(switch: str) -> Check:
    """A switch of the model is on."""

    def check(config: RunConfig, values: Values) -> str | None:
        del values
        return None if getattr(config.model, switch) else f"it needs model.{switch} = true"

    return check


def expert_ranks(config: RunConfig, values: Values) -> str | None:
    """Experts are dealt out to several ranks."""
    del values
    return None if config.mesh.ep > 1 else "every rank holds all experts: it needs mesh.ep of 2 or more"


def encoder(config: RunConfig, values: Values) -> str | None:
    """The model has an image encoder."""
    del values
    return None if config.encoder.layers else "there is no image encoder: it needs encoder.layers"


def encoder_inside(config: RunConfig, values: Values) -> str | None:
    """Image tokens travel with the activations."""
    del values
    inside = config.encoder.layers and config.encoder.placement == "inside"
    return None if inside else "no tokens travel between stages: it needs encoder.placement = inside"


def layer(config: RunConfig, values: Values) -> str | None:
    """The layer exists."""
    number, layers = values["layer"], config.model.layers
    return f"layer {number} does not exist among {layers}" if int(number) >= layers else None


def reached(config: RunConfig, values: Values) -> str | None:
    """Backward reaches the layer."""
    number = int(values["layer"])
    return (
        None
        if config.model.passes_gradient(number)
        else f"layer {number} is frozen and no backward reaches it"
    )


def trained(config: RunConfig, values: Values) -> str | None:
    """The layer has gradients of weights; without a layer, so have the parts outside the layers."""
    if "layer" not in values:
        return (
            "parts outside the layers are frozen: it needs model.frozen = false"
            if config.model.frozen
            else None
        )
    number = int(values["layer"])
    return (
        None if config.model.trains(number) else f"layer {number} is frozen and has no gradients of weights"
    )


def micro_batches(config: RunConfig, values: Values) -> str | None:
    """There are several micro-batches."""
    del values
    return "there is one micro-batch: it shows from 2 on" if config.micro_batches < 2 else None


def steps(config: RunConfig, values: Values) -> str | None:
    """There are several steps."""
    del values
    return "there is one step: it shows from the second on" if config.steps < 2 else None


def sequence_parallel(config: RunConfig, values: Values) -> str | None:
    """Sequence parallelism is on."""
    del values
    wanted = config.mesh.sequence_parallel and not config.mesh.annotated
    return None if wanted else "it needs mesh.sequence_parallel = true"


def annotated(config: RunConfig, values: Values) -> str | None:
    """Weights and activations are annotated over two axes."""
    del values
    return None if config.mesh.annotated else "it needs mesh.sharding = spmd_2d"


def shards(config: RunConfig, values: Values) -> str | None:
    """FSDP2 shards over more than one rank."""
    del values
    mesh = config.mesh
    if mesh.replicates or (mesh.dp_shard or mesh.dp) * mesh.cp == 1:
        return "nothing is sharded: it needs mesh.zero 1 to 3 and dp·cp of 2 or more in a shard"
    return None


def wide_reduction(config: RunConfig, values: Values) -> str | None:
    """The policy reduces in more than BF16."""
    del values
    if config.numerics.policy == "bf16_pure":
        return "policy bf16_pure reduces and accumulates in BF16 anyhow: choose bf16, fp32 or fp64"
    return None


def parallel(config: RunConfig, values: Values) -> str | None:
    """There is more than one rank."""
    del values
    return (
        "it is in the parallel path only: choose a mesh of 2 ranks or more"
        if config.mesh.world_size < 2
        else None
    )
