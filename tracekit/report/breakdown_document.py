"""The JSON answer of `tracekit breakdown` as types; `documents` has the types of all answers. Times are ns."""

from typing import Annotated, Literal, TypedDict

from msgspec import Meta

from tracekit.report.documents import (
    CoverageDocument,
    MeshDocument,
    Place,
    QualityDocument,
    RanksDocument,
    StepsDocument,
)

Ns = Annotated[int, Meta(description="nanoseconds")]
Part = Annotated[float, Meta(description="share of the step, 0 to 1")]


class ExposedDocument(TypedDict):
    """Exposed communication along one axis: waiting for a late member, transfer, or either."""

    wait_ns: Ns
    transfer_ns: Ns
    open_ns: Ns


class PartsDocument(TypedDict):
    """The parts of a step, or of several; they add up to `step_ns`. `exposed` is by axis."""

    step_ns: Ns
    compute_ns: Ns
    exposed: dict[str, ExposedDocument]
    bubble_ns: Ns
    host_ns: Ns
    idle_ns: Ns
    unknown_ns: Ns


class ShareDocument(TypedDict):
    """One part over all ranks: its mean a step, its share, and the least, median and greatest share of a rank."""

    part: str
    mean_ns: Ns
    share: Part
    least: Part
    median: Part
    most: Part


class RankDocument(PartsDocument):
    """All analysed steps of a rank; `hidden_ns` is the communication beneath which it computed."""

    rank: int
    host: str | None
    coords: Place
    steps: int
    communication_ns: Ns
    hidden_ns: Ns


class CellDocument(PartsDocument):
    """One step of one rank."""

    rank: int
    step: int


class TrafficDocument(TypedDict):
    """One kind of communication along an axis, summed over the analysed steps of all ranks; null speeds are unknown."""

    axis: str
    op: str
    members: int
    rank_steps: int
    calls: int
    unsized: int
    bytes: int
    moved_bytes: int
    exposed_ns: Ns
    algorithm_gb_s: float | None
    bus_gb_s: float | None


class VolumeDocument(TypedDict):
    """What a rank sends in a step beside a formula, elements; `fits` is null where `times` counts something."""

    axis: str
    what: Literal["gradients", "activations", "loss"]
    phi: int
    recorded: float
    formula: str
    scheme: str
    expected: float
    times: float
    fits: bool | None


class BreakdownDocument(TypedDict):
    """The answer of `tracekit breakdown`; the rank that waited least comes first."""

    schema: Literal["tracekit.breakdown/1"]
    ranks: RanksDocument
    mesh: MeshDocument
    steps: StepsDocument
    total: PartsDocument
    shares: list[ShareDocument]
    by_rank: list[RankDocument]
    cells: list[CellDocument]
    traffic: list[TrafficDocument]
    volumes: list[VolumeDocument]
    coverage: CoverageDocument
    quality: list[QualityDocument]
    notes: list[str]
