"""One training job as plain data: shapes, number formats, schedule; made from a run's configuration or by the planner.

The memory model (`memory`), the projection (`plan.projection`) and the simulator compute from it and from its
`Schedule`, the same table that `reftrain run` executes.
"""

from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from reftrain.config.run import EncoderConfig, MeshConfig, ModelConfig, RunConfig
from reftrain.cost.cost_model import CostModel
from reftrain.cost.hardware import Hardware
from reftrain.cost.shapes import Shapes, StageShape, encoder_parameters, layers_of_run, stage_shapes
from reftrain.schedule.actions import Schedule
from reftrain.schedule.generators import generate
from reftrain.schedule.lower import complete, lower
from reftrain.schedule.registry import SCHEMES
from reftrain.schedule.spec import ScheduleSpec

COMPUTE_BYTES = {"bf16": 2, "bf16_pure": 2, "fp32": 4, "fp64": 8}
PARAMETER_BYTES = {"bf16": 4, "bf16_pure": 2, "fp32": 4, "fp64": 8}
REDUCE_BYTES = {"bf16": 4, "bf16_pure": 2, "fp32": 4, "fp64": 8}
FP32_BYTES = 4


@dataclass(frozen=True)
class Job:
    """One training job.

    `seq_len` is in tokens, `micro_batch_size` in sequences. `layers` holds the number of layers of each virtual stage.
    `virtual`, `micro_batches` and `consecutive` are v, m and k of the schedule; `pipelines`, `concatenation` and
    `replica_sync` are Chimera's. `given` is a table that no scheme makes; where there is one, it is used in their
    place. `policy` names the number formats, `kernels` the style of kernels and with it the activations that are kept
    (eager: this repository's modules; fused: see `activations`), `attention` the kernel (sdpa, flash, flex).
    With `offload` the host holds the optimizer's state and steps.
    """

    model: ModelConfig
    mesh: MeshConfig
    seq_len: int
    micro_batches: int
    layers: tuple[int, ...]
    schedule: str = "flexible"
    virtual: int = 1
    consecutive: int = 1
    pipelines: int = 2
    concatenation: str = "direct"
    replica_sync: str = "eager_opt"
    given: Schedule | None = None
    micro_batch_size: int = 1
    recompute: str = "none"
    policy: str = "bf16"
    kernels: str = "fused"
    attention: str = "flex"
    ring: bool = False
    clips: bool = True
    optimizer: str = "fused"
    offload: bool = False
    encoder: EncoderConfig = field(default_factory=EncoderConfig)

    @property
    def compute_bytes(self) -> int:
        """Bytes of an element of activations, and of gathered weights."""
        return COMPUTE_BYTES[self.policy]

    @property
    def parameter_bytes(self) -> int:
        """Bytes of an element of a weight's shard."""
        return PARAMETER_BYTES[self.policy]

    @property
    def reduce_bytes(self) -> int:
        """Bytes of an element of accumulated and reduced gradients."""
        return REDUCE_BYTES[self.policy]

    @cached_property
    def shapes(self) -> Shapes:
        """Sizes of the model on one tensor rank."""
        return Shapes(self.model, self.mesh.tp, self.mesh.ep)

    @cached_property
    def stages(self) -> tuple[StageShape, ...]:
        """Layers, embedding and head of every virtual stage."""
        return stage_shapes(self.layers, self.model)

    def stage_parameters(self, stage: int) -> int:
        """Parameters of a virtual stage on one tensor rank."""
        shape = self.stages[stage]
        return self.shapes.stage_parameters(shape.layers, first=shape.first, last=shape.last)

    @cached_property
    def _whole_shapes(self) -> Shapes:
        """Sizes of the model on one tensor rank that holds all experts."""
        return Shapes(self.model, self.mesh.tp)

    def sharded_parameters(self, stage: int) -> float:
        """Parameters of a virtual stage in one rank's shards: all experts count, over dp and cp or a part of them."""
        shape = self.stages[stage]
        whole = self._whole_shapes.stage_parameters(shape.layers, first=shape.first, last=shape.last)
        return whole / self.shard_ranks

    def trained_parameters(self, stage: int) -> float:
        """Parameters of a virtual stage in one rank's shards that have gradients, counted as `sharded_parameters`."""
        return self._whole_shapes.trained_parameters(self.stages[stage]) / self.shard_ranks

    @property
    def encoder_parameters(self) -> int:
        """Parameters of the image encoder on a tensor rank that holds it; 0 for a text model."""
        return encoder_parameters(self.encoder, self.model, self.mesh.tp)

    @property
    def image_tokens(self) -> int:
        """Image tokens of a micro-batch."""
        return self.micro_batch_size * self.encoder.tokens if self.encoder.layers else 0

    @property
    def optimizer_bytes(self) -> int:
        """Bytes an element of the optimiser's moments, and of its FP32 masters where weights are narrower."""
        return {2: 12, 4: 8, 8: 16}[self.parameter_bytes]

    @property
    def device_state_bytes(self) -> int:
        """Bytes an element of the optimiser's state in the device's memory."""
        return 0 if self.offload else self.optimizer_bytes

    @property
    def host_state_bytes(self) -> int:
        """Bytes an element in the host's memory: the state, and copies of a weight and its gradient."""
        return self.optimizer_bytes + 2 * self.parameter_bytes if self.offload else 0

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch on one context rank: B · S/cp."""
        return self.micro_batch_size * self.seq_len // self.mesh.cp

    @property
    def local_tokens(self) -> int:
        """Tokens of a rank outside the tensor-parallel regions."""
        split = self.mesh.splits_sequence or self.mesh.annotated
        return self.tokens // self.mesh.tp if split else self.tokens

    @property
    def message_bytes(self) -> int:
        """Bytes of an activation, or its gradient, between two pipeline stages."""
        return self.local_tokens * self.model.dim * self.compute_bytes

    @property
    def shard_ranks(self) -> int:
        """Ranks among which parameters, gradients and optimiser states are sharded."""
        if not self.mesh.zero:
            return 1
        return (self.mesh.dp_shard or self.mesh.dp) * self.mesh.cp

    @property
    def table(self) -> Schedule:
        """Forwards and backwards of the schedule."""
        return self.given or _table(self._spec)

    @property
    def lowered(self) -> Schedule:
        """The schedule with messages, gradient reductions and sums over replicas."""
        return self._given_lowered or _lowered(
            self._spec, self.mesh.zero, self.replica_sync, self.encoder.placed
        )

    @cached_property
    def _given_lowered(self) -> Schedule | None:
        return (
            None
            if self.given is None
            else complete(self.given, self.mesh.zero, self.replica_sync, self.encoder.placed)
        )

    @property
    def _spec(self) -> ScheduleSpec:
        virtual, k = self.virtual, self.consecutive
        if "pipelines" not in SCHEMES[self.schedule].options:
            return ScheduleSpec(self.schedule, self.mesh.pp, self.micro_batches, virtual, k)
        return ScheduleSpec(
            self.schedule, self.mesh.pp, self.micro_batches, virtual, k, self.pipelines, self.concatenation
        )


# The planner asks for the same few tables again and again; large ones must not pile up.
@lru_cache(maxsize=24)
def _table(spec: ScheduleSpec) -> Schedule:
    return generate(spec)


@lru_cache(maxsize=24)
def _lowered(spec: ScheduleSpec, zero: int, sync: str, encoder: str) -> Schedule:
    return lower(_table(spec), zero, sync, encoder)


def cost_model_of(job: Job, hardware: Hardware, pairs: float | None = None) -> CostModel:
    """Return the cost model of a job on a machine; `pairs` as in `CostModel`."""
    return CostModel(
        hardware,
        job.model,
        job.mesh,
        seq_len=job.seq_len,
        micro_batch_size=job.micro_batch_size,
        recompute=job.recompute,
        compute_bytes=job.compute_bytes,
        reduce_bytes=job.reduce_bytes,
        pairs=pairs,
        accumulates=job.micro_batches > 1,
        encoder=job.encoder,
        offload=job.offload,
    )


def job_of_run(config: RunConfig) -> Job:
    """Return the job that `reftrain run` would run on CPUs with this configuration."""
    attention = config.numerics.attention
    if attention == "auto":
        attention = "sdpa" if config.numerics.document_mask or config.mesh.cp > 1 else "flash"
    return Job(
        model=config.model,
        mesh=config.mesh,
        seq_len=config.data.seq_len,
        micro_batches=config.micro_batches,
        layers=layers_of_run(config),
        schedule=config.pipeline.schedule,
        virtual=config.pipeline.virtual_stages,
        consecutive=config.consecutive,
        pipelines=config.pipeline.pipelines,
        concatenation=config.pipeline.concatenation,
        replica_sync=config.pipeline.replica_sync,
        micro_batch_size=config.data.micro_batch_size,
        recompute=config.numerics.recompute,
        policy=config.numerics.policy,
        kernels="eager",
        attention=attention,
        ring=config.numerics.cp_method == "ring" and config.mesh.cp > 1,
        clips=config.optimizer.clip_norm > 0,
        optimizer=config.optimizer.implementation,
        offload=config.optimizer.offload,
        encoder=config.encoder,
    )
