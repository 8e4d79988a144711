"""What an analysis says, as data: the text and the JSON of a report come from these objects alone.

Field names, meanings and order are the public contract `tracekit.slowrank/1`; a change of meaning needs a new
schema number.
"""

from dataclasses import dataclass, field
from typing import Literal

Verdict = Literal["healthy", "slow_rank", "slow_link", "imbalance", "inconclusive"]
Cause = Literal[
    "gpu_compute",
    "cpu_launch",
    "host_stall",
    "dataloader",
    "network",
    "data_imbalance",
    "stage_imbalance",
    "memory",
    "unknown",
]
MeshSource = Literal["process_groups", "flag", "manifest", "flat_world"]


@dataclass(frozen=True)
class Rejected:
    """A file that could not be used, and why."""

    path: str
    reason: str
    rank: int | None = None


@dataclass(frozen=True)
class Quality:
    """One kind of repair or doubt about one file (or, with `path` None, about the run)."""

    kind: str
    path: str | None = None
    count: int = 0
    detail: str = ""
    kept_events: int | None = None


@dataclass(frozen=True)
class RankCoverage:
    """Which ranks the answer rests on."""

    expected: int
    read: int
    missing: tuple[int, ...] = ()
    rejected: tuple[Rejected, ...] = ()


@dataclass(frozen=True)
class MeshFinding:
    """Axes from inner to outer, their sizes, and where they were learned."""

    order: tuple[str, ...]
    sizes: dict[str, int]
    source: MeshSource


@dataclass(frozen=True)
class StepsFinding:
    """Steps the answer rests on; `median_ms` is the median step time over ranks and steps."""

    analysed: tuple[int, ...]
    median_ms: float


@dataclass(frozen=True)
class PathLevel:
    """One level of the descent: the ranks with this index made the other indices wait `lag_ms` a step."""

    dim: str
    index: int
    lag_ms: float


@dataclass(frozen=True)
class Evidence:
    """A measured quantity of the suspect beside the median of its peers."""

    what: str
    value: float
    peers_median: float | None
    unit: str


@dataclass(frozen=True)
class Suspect:
    """A rank that others waited for. `lost_ms_per_step`: mean over analysed steps of the time others waited."""

    rank: int
    host: str | None
    coords: dict[str, int]
    lost_ms_per_step: float
    confidence: float
    steps: tuple[int, ...]
    cause: Cause
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True)
class WhatIf:
    """Mean step time as measured, and as projected with all suspects typical."""

    step_ms: float
    without_suspects_ms: float
    slowdown: float


@dataclass(frozen=True)
class SlowRankFinding:
    """The answer of `tracekit slowrank`."""

    ranks: RankCoverage
    mesh: MeshFinding
    steps: StepsFinding
    verdict: Verdict
    cause: Cause | None
    reason: str  # one sentence for a reader: why this verdict
    path: tuple[PathLevel, ...]
    suspects: tuple[Suspect, ...]
    what_if: WhatIf
    quality: tuple[Quality, ...] = ()
    notes: tuple[str, ...] = field(default=())  # assumptions worth a word, for --verbose
