"""The description of a simulated job, of its capture, and the truth about it."""

from dataclasses import dataclass, field

from tests.generator.mesh import Mesh

FAULT_KINDS = (
    "slow_compute",
    "intermittent",
    "launch_bound",
    "pauses",
    "late_data",
    "slow_host",
    "slow_link",
    "doc_imbalance",
    "long_stage",
)
HEALTHY_KINDS = ("healthy", "healthy_slack")
NOBODYS_KINDS = ("start_up", "checkpoint", "long_step", "long_operation")
"""What makes steps long and is nobody's fault: drawn only where asked for."""
KINDS = FAULT_KINDS + HEALTHY_KINDS + NOBODYS_KINDS


@dataclass
class Job:
    """The training job without any fault. Times in nanoseconds."""

    mesh: Mesh
    micro_batches: int
    layers: tuple[int, ...]  # transformer layers per pipeline stage
    steps: int  # simulated, of which the first is never captured
    schedule: str  # 1f1b | afab
    p2p: str  # blocking | async
    eager: bool  # a send completes without its receiver
    p2p_group: str  # pp | world: the group that carries point-to-point calls
    dp_mode: str  # exposed | overlap | fsdp
    dp_group: str  # dp | dp_cp
    grad_norm: str  # none | world | mp
    tied_embedding: bool
    loader: str  # all | ends: every rank loads, or tp 0 of the first and last stage, who broadcasts over tp
    loads_per_step: bool  # one fetch a step, or one a micro-batch
    end_work: str  # balanced | light_last: is the missing layer of the end stages made up for
    layer_ns: float  # compute of one layer's forward
    attention: float  # its share that is attention
    tp_ns: float  # transfer of one collective or message, uncontended
    cp_ns: float
    pp_ns: float
    dp_ns: float
    head_bias: float  # relative error of the balancing of the end stages
    host_ns: float  # host time to launch a kernel
    load_ns: float  # host time of one fetch from the data loader
    jitter: float  # relative standard deviation of a kernel's time
    outliers: float  # probability that a kernel takes several times longer
    host_size: int  # ranks a host


@dataclass
class Capture:
    """How the job was recorded. Everything here changes the files, and nothing of the run."""

    offsets: list[int]  # ns, per rank, added to every time of that rank
    drifts: list[float]  # relative, per rank
    windows: list[tuple[float, float]]  # true ns, per rank
    seq: bool
    pg_config: bool
    style: str
    naming: str
    names: int  # file naming scheme
    gz: bool
    base: bool  # times relative to baseTimeNanoseconds
    metadata_last: bool
    cpu_first: bool  # CPU rows before GPU rows, as Kineto writes; else by time
    nested_comms: bool
    host_name: bool
    step_spans_on_gpu: bool
    missing: set[int] = field(default_factory=set)
    truncated: dict[int, float] = field(default_factory=dict)
    split: bool = False
    shuffled: bool = False
    labels: list[int] | None = None  # rank as written, by simulated rank
    form: str = "plain"  # how point-to-point is written: a key of forms.FORMS


@dataclass
class Fault:
    """A planted fault; `severity` is scaled until the step takes as much longer as was asked."""

    kind: str
    ranks: tuple[int, ...] = ()
    steps: tuple[int, ...] | None = None
    severity: float = 0.0
    detail: dict[str, object] = field(default_factory=dict)


@dataclass
class Truth:
    """The answer that an analysis should give, in the terms of `tracekit.slowrank/1`."""

    seed: int
    kind: str
    variant: str
    verdict: str
    cause: str | None
    suspects: frozenset[int]  # any of them may stand first; empty: nobody is to be named
    coords: dict[int, dict[str, int]]
    slowdown: float  # mean step time with the fault over the mean without
    step_ms: list[float]  # captured steps
    order: tuple[str, ...]
    sizes: dict[str, int]
    fault_steps: tuple[int, ...] | None
    severity: float
