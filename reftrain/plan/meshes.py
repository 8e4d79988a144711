"""All meshes of a number of devices, and the reasons for which shapes alone rule a mesh out.

The planner (`choose`) gives every mesh either a projection or the reason why it has none.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from reftrain.config.run import EncoderConfig, ModelConfig
from reftrain.cost.job import Job
from reftrain.thresholds import MOST_ACTIONS

Mesh = tuple[int, int, int, int]
"""Sizes of tp, cp, pp, dp."""


@dataclass(frozen=True)
class Workload:
    """The training to plan: `sequences` of `seq_len` tokens a step on `gpus` devices, spread as `sharding` says.

    With `offload` the optimizer may be the host's.
    """

    model: ModelConfig
    gpus: int
    seq_len: int
    sequences: int
    micro_batch_size: int = 1
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    sharding: str = "fsdp"
    offload: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.sequences * self.seq_len


def schedule_name(job: Job) -> str:
    """Schedule of a job in words."""
    words = [job.schedule, *([f"v={job.virtual}"] if job.virtual > 1 else [])]
    if job.mesh.ep > 1:
        words.append(f"ep={job.mesh.ep}")
    words.append(f"ZeRO-{job.mesh.zero}")
    if job.recompute != "none":
        words.append(f"recompute={job.recompute}")
    if job.offload:
        words.append("offload")
    if job.encoder.layers and job.mesh.pp > 1:
        words.append(f"encoder={job.encoder.placement}")
    return " ".join(words)


def divisors(number: int) -> list[int]:
    """Return the divisors in ascending order."""
    small = [d for d in range(1, int(number**0.5) + 1) if number % d == 0]
    return sorted({*small, *(number // d for d in small)})


def all_meshes(gpus: int) -> Iterator[Mesh]:
    """Yield every way to write `gpus` as tp · cp · pp · dp."""
    for tp in divisors(gpus):
        for cp in divisors(gpus // tp):
            for pp in divisors(gpus // tp // cp):
                yield tp, cp, pp, gpus // tp // cp // pp


def axes_of(mesh: Mesh) -> int:
    """Number of axes along which a mesh has more than one rank."""
    return sum(size > 1 for size in mesh)


def expert_ranks(model: ModelConfig, dp: int) -> list[int]:
    """Return the numbers of ranks of dp that can share out the experts of a model; 1 without experts."""
    return [ep for ep in divisors(dp) if model.experts % ep == 0] if model.experts else [1]


def impossible(workload: Workload, mesh: Mesh) -> str | None:
    """Return the reason why the shapes do not allow a mesh, or None."""
    tp, cp, pp, dp = mesh
    model = workload.model
    if workload.sharding == "spmd_2d" and (reason := _not_annotated(model, mesh)):
        return reason
    if model.heads % tp:
        return f"tp {tp} does not divide {model.heads} heads"
    if model.ffn_dim % tp:
        return f"tp {tp} does not divide the feed-forward's {model.ffn_dim} columns"
    if model.kv_heads % tp and tp % model.kv_heads:
        return f"tp {tp} and {model.kv_heads} key/value heads do not divide one another"
    if cp > 1 and workload.seq_len % (2 * cp):
        return f"cp {cp} cannot cut {workload.seq_len} tokens into {2 * cp} chunks"
    if workload.sharding == "fsdp" and (workload.seq_len // cp) % tp:
        return f"tp {tp} cannot split the {workload.seq_len // cp} tokens of a context rank"
    if dp * workload.micro_batch_size > workload.sequences:
        return f"dp {dp} has no micro-batch for every rank: {workload.sequences} sequences a step"
    if workload.sequences % (dp * workload.micro_batch_size):
        return f"{workload.sequences} sequences do not split over dp {dp}"
    if workload.encoder.layers and workload.encoder.heads % tp:
        return f"tp {tp} does not divide the encoder's {workload.encoder.heads} heads"
    if model.cross_every and pp * model.group > model.layers:
        return f"pp {pp} has more ranks than groups of {model.cross_every} + 1 layers"
    if pp > model.layers + 2:
        return f"pp {pp} has more ranks than {model.layers} layers, embedding and head fill"
    micro_batches = workload.sequences // (dp * workload.micro_batch_size)
    if 2 * (model.layers + 2) * micro_batches > MOST_ACTIONS:  # of a table with one layer a virtual stage
        return f"dp {dp} leaves {micro_batches} micro-batches a step, too many to lay out"
    return None


def _not_annotated(model: ModelConfig, mesh: Mesh) -> str | None:
    """Return what SPMD 2-D sharding, over data (dp) and model (tp), does not allow of a mesh, or None."""
    tp, cp, pp, dp = mesh
    if cp > 1 or pp > 1:
        return f"spmd_2d has the axes dp and tp alone, not cp {cp} and pp {pp}"
    if model.experts or model.cross_every:
        return "spmd_2d annotates plain decoders alone"
    if model.dim % tp or model.dim % dp:
        return f"dp {dp} and tp {tp} do not divide the model width {model.dim}"
    if model.kv_heads % tp:
        return f"spmd_2d copies no key/value heads: tp {tp} does not divide {model.kv_heads}"
    return None
