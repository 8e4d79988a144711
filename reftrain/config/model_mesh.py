"""The tables [model], [mesh] and [pipeline] of the configuration: the model, and its spread over ranks."""

from dataclasses import dataclass
from typing import Final

from reftrain.config.fields import check_bounds, check_choice, setting
from reftrain.errors import ConfigError
from reftrain.schedule.replica_sync import SYNCS
from reftrain.schedule.spec import CONCATENATIONS
from reftrain.thresholds import MOST_DEVICES, MOST_EXPERTS, MOST_LAYERS, MOST_TABLE_RANKS, WIDEST
from tracekit.axes import AXES

ZERO_STAGES: Final = (0, 1, 2, 3)
"""Stages of ZeRO (Rajbhandari et al. 2020, section 5): 1 shards the optimiser, 2 also gradients, 3 also parameters."""
SHARDINGS: Final = ("fsdp", "spmd_2d")
"""Ways to spread the model over dp and tp; `reftrain.parallel.spmd` has the table of the second."""
_SHARDS_GRADIENTS_FROM: Final = 2
_SHARDS_PARAMETERS_FROM: Final = 3


@dataclass(frozen=True)
class ModelConfig:
    """Shape of the Llama-3 decoder."""

    preset: str = setting("tiny", "name of the preset the other fields start from")
    layers: int = setting(4, "number of decoder layers", least=1, most=MOST_LAYERS)
    dim: int = setting(64, "model width", least=1, most=WIDEST)
    heads: int = setting(8, "query heads; dim / heads is the head width", least=1, most=WIDEST)
    kv_heads: int = setting(
        4, "key and value heads (grouped-query attention); divides heads", least=1, most=WIDEST
    )
    ffn_dim: int = setting(128, "inner width of the SwiGLU feed-forward", least=1, most=WIDEST)
    vocab_size: int = setting(260, "number of tokens", least=1, most=WIDEST)
    rope_base: float = setting(500_000.0, "base of the rotary position embedding", least=1)
    norm_eps: float = setting(1e-5, "epsilon of RMSNorm", least=0, most=1)
    tied_embeddings: bool = setting(default=False, meaning="output projection shares the embedding's weights")
    qk_norm: bool = setting(default=False, meaning="RMSNorm on each query and key head before RoPE")
    bias: bool = setting(default=False, meaning="biases in all projections but the output head")
    fused_qkv: bool = setting(default=False, meaning="one projection for query, key and value")
    pad_vocab: bool = setting(default=False, meaning="pad the vocabulary to a multiple of tp")
    zero_columns: int = setting(
        0, "start every n-th column of the embedding as -0.0, to let signed zeros show", least=0, most=WIDEST
    )
    replicate_kv: bool = setting(default=True, meaning="copy key/value heads when there are fewer than tp")
    experts: int = setting(
        0,
        "experts in place of each feed-forward, ffn_dim wide each; 0 means none",
        least=0,
        most=MOST_EXPERTS,
    )
    experts_per_token: int = setting(2, "experts that compute each token", least=1, most=MOST_EXPERTS)
    shared_expert: bool = setting(default=False, meaning="one more expert that computes every token")
    expert_capacity: float = setting(
        0.0,
        "most tokens of a sequence that an expert takes, as a multiple of the even share; 0 drops none",
        least=0,
        most=WIDEST,
    )
    expert_balance: float = setting(
        0.01, "weight of the load-balancing loss of the experts", least=0, most=WIDEST
    )
    expert_skew: float = setting(
        0.0, "added to the router's scores of expert 0, to let uneven experts show", least=0, most=WIDEST
    )
    cross_every: int = setting(
        0,
        "self-attention layers before each cross-attention layer to image tokens; 0 means a text model",
        least=0,
        most=MOST_LAYERS,
    )
    frozen: bool = setting(
        default=False, meaning="train the image encoder and the cross-attention layers alone"
    )

    def __post_init__(self) -> None:
        check_bounds("model", self)
        if self.dim % self.heads:
            raise ConfigError(
                "model.heads", f"{self.heads} does not divide dim {self.dim}", "choose a divisor of dim"
            )
        if (self.dim // self.heads) % 2:
            raise ConfigError(
                "model.heads",
                f"head width {self.dim // self.heads} is odd",
                "choose heads so that RoPE can pair it",
            )
        if self.heads % self.kv_heads:
            raise ConfigError(
                "model.kv_heads",
                f"{self.kv_heads} does not divide heads {self.heads}",
                "choose a divisor of heads",
            )
        if self.experts:
            self._check_experts()

    def _check_experts(self) -> None:
        if self.experts_per_token > self.experts:
            raise ConfigError(
                "model.experts_per_token",
                f"{self.experts_per_token} are more than {self.experts} experts",
                f"choose 1 to {self.experts}",
            )
        if self.bias:
            raise ConfigError("model.bias", "experts have no biases", "set model.bias = false")

    @property
    def computed_experts(self) -> int:
        """Feed-forwards that compute each token: its experts and the shared one, or the one of a dense model."""
        return self.experts_per_token + self.shared_expert if self.experts else 1

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.dim // self.heads

    @property
    def group(self) -> int:
        """Layers that a virtual stage holds together: N self-attention layers and 1 cross-attention layer, or 1."""
        return self.cross_every + 1

    def crosses(self, layer: int) -> bool:
        """Whether a layer attends to image tokens instead of the text."""
        return self.cross_every > 0 and layer % self.group == self.cross_every

    def trains(self, layer: int) -> bool:
        """Whether a layer's weights change."""
        return not self.frozen or self.crosses(layer)

    def passes_gradient(self, layer: int) -> bool:
        """Whether backward reaches a layer: in front of the first trained weights there is nothing to train."""
        return not self.frozen or layer >= self.cross_every


@dataclass(frozen=True)
class MeshConfig:
    """Sizes of the axes and how data parallelism shards."""

    tp: int = setting(1, "tensor-parallel ranks", least=1, most=MOST_DEVICES)
    cp: int = setting(1, "context-parallel ranks", least=1, most=MOST_DEVICES)
    pp: int = setting(1, "pipeline ranks", least=1, most=MOST_DEVICES)
    dp: int = setting(1, "data-parallel ranks", least=1, most=MOST_DEVICES)
    ep: int = setting(
        1, "neighbours on dp that share the experts of a model copy; divides dp", least=1, most=MOST_DEVICES
    )
    order: tuple[str, ...] = setting(AXES, "axes from inner (neighbouring ranks) to outer")
    sequence_parallel: bool = setting(
        default=True, meaning="shard norms and residuals over tp along the sequence"
    )
    sharding: str = setting(
        "fsdp",
        "fsdp (whole rows over dp, tp as in Megatron) or spmd_2d (weights and activations annotated over both axes, "
        "dp as data and tp as model)",
    )
    zero: int = setting(
        1,
        "0 replicates, 1 shards the optimiser, 2 also gradients, 3 also weights",
        least=0,
        most=ZERO_STAGES[-1],
    )
    dp_shard: int = setting(
        0,
        "HSDP: ranks of dp that shard among themselves, the others replicate; 0 means all",
        least=0,
        most=MOST_DEVICES,
    )
    bucket_mb: float = setting(
        0.0,
        "with zero = 0: MiB of gradients summed at once, as DistributedDataParallel does; 0 sums layer by layer",
        least=0,
        most=WIDEST,
    )

    def __post_init__(self) -> None:
        check_bounds("mesh", self)
        if sorted(self.order) != sorted(AXES):
            raise ConfigError(
                "mesh.order",
                f"{','.join(self.order)} is not a permutation of the axes",
                "name tp, cp, pp, dp once each",
            )
        if self.bucket_mb and self.zero:
            raise ConfigError(
                "mesh.bucket_mb",
                f"zero = {self.zero} reduces layer by layer",
                "set zero = 0 or bucket_mb = 0",
            )
        check_choice("mesh", self, "sharding", SHARDINGS)
        if self.dp_shard and self.dp % self.dp_shard:
            raise ConfigError(
                "mesh.dp_shard", f"{self.dp_shard} does not divide dp {self.dp}", "choose a divisor of dp"
            )
        if self.dp_shard and not self.zero:
            raise ConfigError(
                "mesh.dp_shard", "zero = 0 shards nothing", "leave dp_shard out or choose zero 1 to 3"
            )
        if self.ep > 1:
            self._check_expert_ranks()

    def _check_expert_ranks(self) -> None:
        """Refuse expert ranks that dp cannot hold, and ways of sharding that experts do not follow."""
        if self.dp % self.ep:
            raise ConfigError("mesh.ep", f"{self.ep} does not divide dp {self.dp}", "choose a divisor of dp")
        if self.replicates:
            raise ConfigError("mesh.zero", f"0 copies whole models, which ep {self.ep} cuts", "choose 1 to 3")
        if self.dp_shard:
            raise ConfigError(
                "mesh.dp_shard", f"groups of {self.dp_shard} and ep {self.ep} are not joined", "leave one out"
            )

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def sizes(self) -> dict[str, int]:
        """Number of ranks on each axis, from tp to dp."""
        return {axis: int(getattr(self, axis)) for axis in AXES}

    @property
    def replicates(self) -> bool:
        """Whether every data-parallel rank holds the whole optimiser state (ZeRO-0)."""
        return self.zero == 0

    @property
    def annotated(self) -> bool:
        """Whether weights and activations are annotated over data and model axes (SPMD 2-D)."""
        return self.sharding == "spmd_2d"

    @property
    def splits_sequence(self) -> bool:
        """Whether tensor ranks split norms and residuals by tokens; annotated ones split them by features."""
        return self.sequence_parallel and self.tp > 1 and not self.annotated

    @property
    def shards_gradients(self) -> bool:
        """Whether gradients are reduced and sharded before the step ends (ZeRO-2 and ZeRO-3)."""
        return self.zero >= _SHARDS_GRADIENTS_FROM

    @property
    def shards_parameters(self) -> bool:
        """Whether weights are freed between uses (ZeRO-3)."""
        return self.zero >= _SHARDS_PARAMETERS_FROM


@dataclass(frozen=True)
class PipelineConfig:
    """The pipeline schedule and how layers fall on stages."""

    schedule: str = setting(
        "flexible", "flexible (interleaved 1F1B with free k) or another name of `reftrain schedule`"
    )
    virtual_stages: int = setting(
        1, "v: virtual stages (model chunks) a pipeline rank holds", least=1, most=MOST_LAYERS
    )
    consecutive: int = setting(
        0, "k: micro-batches that run consecutively on a virtual stage; 0 means pp", least=0, most=WIDEST
    )
    pipelines: int = setting(
        2, "2f: pipelines of chimera, half of them down and half up", least=1, most=MOST_TABLE_RANKS
    )
    concatenation: str = setting("direct", "chimera beyond pp micro-batches: direct, doubling or halving")
    replica_sync: str = setting(
        "eager_opt", "when chimera and gems sum the replicas' gradients: lazy, eager or eager_opt"
    )
    layers_per_stage: tuple[int, ...] = setting(
        (), "layers of each virtual stage in order; empty means even", least=0, most=MOST_LAYERS
    )
    balanced: bool = setting(
        default=False, meaning="count embedding and head as a layer each (fewer on first and last)"
    )

    def __post_init__(self) -> None:
        check_bounds("pipeline", self)
        check_choice("pipeline", self, "concatenation", CONCATENATIONS)
        check_choice("pipeline", self, "replica_sync", SYNCS)
