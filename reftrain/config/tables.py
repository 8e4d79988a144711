"""Tables of the configuration besides model, mesh and pipeline, and all tables together: every field with its meaning.

Each table checks its own fields when it is constructed. `Tables` joins them without checking one against another:
`checks` reads it, and `run.RunConfig` is the checked form that everything else uses.
"""

from dataclasses import dataclass, field

from reftrain.config.checkpoint import CheckpointConfig, ElasticConfig
from reftrain.config.encoder import EncoderConfig
from reftrain.config.evaluation import EvaluationConfig
from reftrain.config.fault_spec import is_hang
from reftrain.config.fields import check_bounds, check_choice, setting
from reftrain.config.model_mesh import MeshConfig, ModelConfig, PipelineConfig
from reftrain.config.trace_forms import HOST_FORMS, NEWEST
from reftrain.errors import ConfigError
from reftrain.thresholds import (
    FOREVER_S,
    LARGEST_INTEGER,
    MOST_STEPS,
    MOST_THREADS,
    SMALLEST_CONSTANT,
    WAIT_IN_HANG_S,
    WAIT_S,
    WIDEST,
)

TRACKERS = ("tensorboard", "wandb", "mlflow")
"""Trackers of experiments that a run can send its figures to."""


@dataclass(frozen=True)
class DataConfig:
    """Packed documents, the same whatever the mesh."""

    preset: str = setting(
        "", "name of a preset the other fields start from, e.g. sensitive; empty: the model's"
    )
    source: str = setting(
        "synthetic", "synthetic documents, text: bytes of the files named, or tokens: a tokenised data set"
    )
    files: tuple[str, ...] = setting(
        (), "files for source = text, or for tokens: .parquet, .arrow, .bin with .idx, or folders of these"
    )
    column: str = setting("", "column with lists of tokens; empty: input_ids or tokens")
    eos: int = setting(-1, "token that ends a document, for source = tokens", least=-1, most=WIDEST)
    append_eos: bool = setting(default=True, meaning="add eos after each document; false where it is there")
    shuffle: bool = setting(
        default=True, meaning="take tokenised documents in a seeded order, new each epoch"
    )
    seq_len: int = setting(64, "tokens a sequence", least=2, most=WIDEST)
    batch_size: int = setting(12, "sequences a step over all data-parallel ranks", least=1, most=WIDEST)
    micro_batch_size: int = setting(1, "sequences a micro-batch", least=1, most=WIDEST)
    micro_batches: int = setting(
        0,
        "m: micro-batches a step and data-parallel rank; 0 means what the batch gives",
        least=0,
        most=WIDEST,
    )
    mean_document: int = setting(24, "mean length of a synthetic document in tokens", least=2, most=WIDEST)
    padding: float = setting(
        0.25, "greatest share of a sequence left as padding (the share varies by sequence)", least=0, most=1
    )
    seed: int = setting(1, "seed of the documents", least=0, most=LARGEST_INTEGER)
    offset: int = setting(
        0,
        "added to the numbers of sequences, for stages of a recipe",
        least=-LARGEST_INTEGER,
        most=LARGEST_INTEGER,
    )
    mix: tuple[float, ...] = setting(
        (), "share of sequences from each of files; empty: files are one source", least=0, most=1
    )

    def __post_init__(self) -> None:
        check_choice("data", self, "source", ("synthetic", "text", "tokens"))
        check_bounds("data", self)
        if self.padding == 1:
            raise ConfigError("data.padding", f"{self.padding} leaves no token", "give a share below 1")
        if self.source == "text" and not self.files:
            raise ConfigError("data.files", "source = text names no file", "name at least one text file")
        if self.mix and (len(self.mix) != len(self.files) or not sum(self.mix)):
            problem = (
                f"{len(self.mix)} shares, of {sum(self.mix):g} in sum, for {len(self.files)} of data.files"
            )
            raise ConfigError("data.mix", problem, "give each file a share, one above 0")
        if self.source == "tokens" and not self.files:
            raise ConfigError(
                "data.files", "source = tokens names no file", "name a data set, as with --data"
            )


@dataclass(frozen=True)
class NumericsConfig:
    """Number formats, attention and recomputation."""

    policy: str = setting("bf16", "bf16 (FP32 masters, accumulation and reduction), bf16_pure, fp32 or fp64")
    recompute: str = setting(
        "none", "activations recomputed in backward: none, selective (attention core), full"
    )
    attention: str = setting(
        "auto",
        "attention kernel: auto, sdpa or math (mask tensor), documents (one by one: cost follows the mask), "
        "flash (no document mask) or flex (CUDA)",
    )
    cp_method: str = setting("all_gather", "context parallelism: all_gather of keys and values, or ring")
    document_mask: bool = setting(default=True, meaning="documents do not attend to each other")
    tp_reduce: str = setting(
        "compute", "format of sums over tp: compute, or fp32 (rounded once, after the sum)"
    )
    loss_log: str = setting(
        "running", "logged loss: running sum of the micro-batches in FP64, or stacked, in FP32"
    )
    label_smoothing: float = setting(
        0.0, "share of the target spread evenly over the vocabulary", least=0, most=1
    )

    def __post_init__(self) -> None:
        check_choice("numerics", self, "policy", ("bf16", "bf16_pure", "fp32", "fp64"))
        check_choice("numerics", self, "recompute", ("none", "selective", "full"))
        check_choice("numerics", self, "attention", ("auto", "sdpa", "math", "documents", "flash", "flex"))
        check_choice("numerics", self, "cp_method", ("all_gather", "ring"))
        check_choice("numerics", self, "tp_reduce", ("compute", "fp32"))
        check_choice("numerics", self, "loss_log", ("running", "stacked"))
        check_bounds("numerics", self)
        if self.label_smoothing == 1:
            raise ConfigError(
                "numerics.label_smoothing", f"{self.label_smoothing} is not a share", "give 0 up to below 1"
            )
        if self.attention == "flash" and self.document_mask:
            raise ConfigError(
                "numerics.attention",
                "flash knows no document mask",
                "choose flex or sdpa, or document_mask = false",
            )


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW with a cosine schedule."""

    learning_rate: float = setting(3e-4, "peak learning rate", least=0)
    final_share: float = setting(0.1, "learning rate at the last step as a share of the peak", least=0)
    warmup_steps: int = setting(2, "steps of linear warm-up", least=0, most=MOST_STEPS)
    decay_steps: int = setting(
        0, "step at which the cosine ends; 0 means the run's last", least=0, most=MOST_STEPS
    )
    anneal_from: int = setting(0, "step from which annealing lowers the rate", least=0, most=MOST_STEPS)
    anneal_steps: int = setting(
        0, "steps in which the rate falls evenly to 0; 0 means no annealing", least=0, most=MOST_STEPS
    )
    weight_decay: float = setting(
        0.1, "decoupled weight decay of matrices (norms and biases have none)", least=0
    )
    beta1: float = setting(0.9, "decay of the first moment", least=0, most=1)
    beta2: float = setting(0.95, "decay of the second moment", least=0, most=1)
    eps: float = setting(1e-8, "epsilon of AdamW", least=0)
    clip_norm: float = setting(1.0, "greatest global gradient norm; 0 does not clip", least=0)
    implementation: str = setting("foreach", "AdamW kernel: foreach, fused or single")
    offload: bool = setting(
        default=False,
        meaning="step in the host's memory, which holds masters and moments: gradients are copied there, weights back",
    )

    def __post_init__(self) -> None:
        check_choice("optimizer", self, "implementation", ("foreach", "fused", "single"))
        check_bounds("optimizer", self)


@dataclass(frozen=True)
class EvidenceConfig:
    """What the run leaves behind besides run.json and metrics."""

    trace_steps: tuple[int, ...] = setting((), "steps to trace with the profiler", least=0, most=MOST_STEPS)
    trace_nested: bool = setting(
        default=True,
        meaning="keep operators called by operators in traces; without them files are half as large",
    )
    trace_form: str = setting(
        NEWEST,
        "torch version that sets the arguments of calls in traces on CPU, or none: " + ", ".join(HOST_FORMS),
    )
    timeout_s: float = setting(
        0.0,
        "seconds after which a collective that does not finish ends the run; 0 means 600, or 25 where a hang "
        "is planted",
        least=0,
        most=FOREVER_S,
    )
    flight_recorder: bool = setting(
        default=False,
        meaning="keep a flight-recorder dump of each rank in fr/; always on with a planted hang",
    )
    memory_snapshot: bool = setting(
        default=False,
        meaning="on CUDA: keep the allocator's history with stacks in memory/, up to the last traced step",
    )
    shadow_gradients: bool = setting(
        default=False,
        meaning="sum gradients in BF16, FP32 and FP64 too and write the distances to shadow/ (zero 0 or 1)",
    )
    capture: str = setting(
        "",
        "record for numerics compare: digest (fingerprints of all tensors), tensors (values too), or nothing",
    )
    capture_names: tuple[str, ...] = setting(
        (), "tensors to keep with values for capture = tensors, as glob patterns; empty means all"
    )
    trackers: tuple[str, ...] = setting(
        (), "trackers that get the figures of steps: tensorboard, wandb, mlflow (each an extra)"
    )
    measure_lag: bool = setting(
        default=True,
        meaning="with planted slow faults, train again without them and write what they cost to run.json",
    )
    faults: tuple[str, ...] = setting((), "planted faults, e.g. slow_compute:rank=5,factor=1.5,steps=2:")

    def __post_init__(self) -> None:
        check_bounds("evidence", self)
        check_choice("evidence", self, "trace_form", HOST_FORMS)
        check_choice("evidence", self, "capture", ("", "digest", "tensors"))
        for name in self.trackers:
            if name not in TRACKERS:
                known = ", ".join(TRACKERS)
                raise ConfigError("evidence.trackers", f"{name!r} is unknown", f"choose among {known}")

    @property
    def hang_planted(self) -> bool:
        """Whether a planted fault will keep the run from ending."""
        return any(is_hang(text) for text in self.faults)

    @property
    def waiting_s(self) -> float:
        """Seconds that a collective may wait for its members."""
        return self.timeout_s or (WAIT_IN_HANG_S if self.hang_planted else WAIT_S)

    @property
    def records_flight(self) -> bool:
        """Whether flight-recorder dumps are kept: a planted hang without them would show nothing."""
        return self.flight_recorder or self.hang_planted


@dataclass(frozen=True)
class Tables:
    """All tables of a run; the field names are the tables of the TOML file. Fields of other types are in [run]."""

    model: ModelConfig = field(default_factory=ModelConfig)
    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    pipeline: PipelineConfig = field(default_factory=PipelineConfig)
    data: DataConfig = field(default_factory=DataConfig)
    numerics: NumericsConfig = field(default_factory=NumericsConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    elastic: ElasticConfig = field(default_factory=ElasticConfig)
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    evidence: EvidenceConfig = field(default_factory=EvidenceConfig)
    steps: int = setting(4, "steps to train", least=1, most=MOST_STEPS)
    seed: int = setting(0, "seed of the weights", least=0, most=LARGEST_INTEGER)
    out: str = setting("run", "folder the run is written to")
    device: str = setting("auto", "cpu, cuda, or auto")
    share_gpus: bool = setting(
        False, "let ranks take turns on a GPU where they are more than the GPUs: slow, for tests and samples"
    )
    threads: int = setting(1, "CPU threads a rank", least=1, most=MOST_THREADS)
    compute: str = setting(
        "real", "real, or emulated: every segment also sleeps its time on the emulated device"
    )
    emulated_gflops: float = setting(20.0, "speed of the emulated device in GFLOP/s", least=SMALLEST_CONSTANT)
    peak_tflops: float = setting(
        0.0, "peak of a device in TFLOP/s for MFU; 0 means known devices only", least=0
    )

    @property
    def micro_batches(self) -> int:
        """m: micro-batches a step and data-parallel rank."""
        return self.data.batch_size // (self.mesh.dp * self.data.micro_batch_size)

    @property
    def stages(self) -> int:
        """Virtual stages of the whole pipeline."""
        return self.mesh.pp * self.pipeline.virtual_stages

    @property
    def consecutive(self) -> int:
        """k: micro-batches that run consecutively on a virtual stage."""
        return min(self.pipeline.consecutive or self.mesh.pp, self.micro_batches)
