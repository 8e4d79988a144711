"""The answers of `reftrain` as JSON: the types that their writers are checked against."""

from typing import Final, Literal, TypedDict

from reftrain.documents.jobs import GoodputDocument as GoodputDocument
from reftrain.documents.jobs import RecipePlanDocument as RecipePlanDocument
from reftrain.documents.jobs import ServerDocument as ServerDocument
from reftrain.layout_documents import Axes, InferDocument, PlanDocument

FaultDocument = dict[str, str | float | None]
"""A planted fault: `kind`, `rank`, `steps`, and the fields of its kind."""


class ScheduleDocument(TypedDict):
    """The answer of `reftrain schedule`; times in the unit of the costs, ratios as fractions of 1."""

    schema: Literal["reftrain.schedule/1"]
    name: str
    stages: int
    virtual_stages: int
    micro_batches: int
    consecutive: int
    replicas: int
    synchronous: bool
    makespan: float
    bubble_ratio: float
    bubble_over_compute: float
    steady_state: bool
    weights_per_rank: list[int]
    peak_activations_per_rank: list[int]
    peak_inputs_per_rank: list[int]
    placement: list[list[int]]
    actions: list[list[str]]


class BytesDocument(TypedDict):
    """Bytes by kind."""

    weights: int
    gradients: int
    optimizer: int
    activations: int
    buffers: int


class RankMemoryDocument(BytesDocument):
    """One pipeline rank: kinds at its `peak` add up to it; `largest` is each kind's peak, `host` offloaded bytes."""

    rank: int
    peak: int
    largest: BytesDocument
    activations_by_kind: dict[str, int]
    in_flight: int
    host: int


class MemoryDocument(TypedDict):
    """The answer of `reftrain memory`; a row a pipeline rank, equal on its other ranks."""

    schema: Literal["reftrain.memory/1"]
    unit: Literal["bytes"]
    kernels: str
    ranks: list[RankMemoryDocument]


class LinkDocument(TypedDict):
    """Seconds, and seconds a byte, that fit all samples; measured over fitted time by operation."""

    alpha: float
    beta: float
    ratios: dict[str, float]


class SpeedDocument(TypedDict):
    """Rates of one process: FLOP/s of products and attention, bytes/s of copies, seconds a kernel."""

    matmul: float
    attention_forward: float
    attention_backward: float
    memory: float
    kernel_s: float


class SampleDocument(TypedDict):
    """Median seconds of one operation."""

    op: str
    ranks: int
    nbytes: int
    seconds: float


class CalibrateDocument(TypedDict):
    """The answer of `reftrain calibrate`; `toml` is the hardware file."""

    schema: Literal["reftrain.calibrate/1"]
    ranks: int
    link: LinkDocument
    speed: SpeedDocument
    samples: list[SampleDocument]
    toml: str


class FieldDocument(TypedDict):
    """A field of a fault; `default` is null where there is none, `choices` is empty where anything goes."""

    meaning: str
    default: str | float | None
    required: bool
    choices: list[str]


class PlantDocument(TypedDict):
    """What can be planted; `axis` and `shows` (where it first shows) are null of slow and stuck ranks."""

    name: str
    axis: str | None
    what: str
    shows: str | None
    fields: dict[str, FieldDocument]
    magnitudes: list[dict[str, str | float]]


class FaultsDocument(TypedDict):
    """The answer of `reftrain faults`."""

    schema: Literal["reftrain.faults/1"]
    faults: list[PlantDocument]


class MeshDocument(TypedDict):
    """The axes from inner to outer, and their sizes."""

    order: list[str]
    sizes: Axes


class WrittenDocument(TypedDict):
    """Counts of what was written: files, events (entries, of dumps), bytes."""

    files: int
    events: int
    size: int


class WrittenFilesDocument(TypedDict):
    """What was written of each kind; null where nothing was."""

    trace: WrittenDocument | None
    flight_recorder: WrittenDocument | None


class SimulateDocument(TypedDict):
    """The answer of `reftrain simulate`; shares as fractions of 1, times of pipeline ranks in ms by cause."""

    schema: Literal["reftrain.simulate/1"]
    mesh: MeshDocument
    world_size: int
    hardware: str
    schedule: str
    micro_batches: int
    steps: int
    whole_steps: int
    step_ms: list[float]
    tflops_per_gpu: float
    bubble_ratio: float
    bubble_over_compute: float
    exposed: dict[str, float]
    host_wait: float
    pipeline_ranks: list[dict[str, float]]
    faults: list[FaultDocument]
    slowdown: float | None
    hang: FaultDocument | None
    written: WrittenFilesDocument


class LineDocument(TypedDict):
    """A published value beside ours; `published` and `deviation` (a fraction of 1) may be null."""

    what: str
    unit: str
    published: float | None
    bound: Literal["", "≥", "≤"]
    ours: float
    deviation: float | None
    how: Literal["predicted", "fitted", "counted"]
    why: str


class FigureDocument(TypedDict):
    """One figure or table of a paper, on a described machine."""

    name: str
    source: str
    title: str
    machine: str
    lines: list[LineDocument]


class MissingDocument(TypedDict):
    """A figure that is not reproduced, and why."""

    name: str
    source: str
    title: str
    why: str


class ReproduceDocument(TypedDict):
    """The answer of `reftrain reproduce`; `missing` is empty where one figure was asked for."""

    schema: Literal["reftrain.reproduce/1"]
    figures: list[FigureDocument]
    missing: list[MissingDocument]


DOCUMENTS: Final[dict[str, type]] = {
    "schedule": ScheduleDocument,
    "memory": MemoryDocument,
    "plan": PlanDocument,
    "calibrate": CalibrateDocument,
    "faults": FaultsDocument,
    "simulate": SimulateDocument,
    "reproduce": ReproduceDocument,
    "goodput": GoodputDocument,
    "infer": InferDocument,
    "server": ServerDocument,
    "recipe_plan": RecipePlanDocument,
}
"""The answers by the command that gives them."""
