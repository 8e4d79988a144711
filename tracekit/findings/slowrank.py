"""The answer of `tracekit slowrank` as data (contract `tracekit.slowrank/1`); times in ms.

A change of meaning needs a new schema number.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from tracekit.findings.shared import (
    Columns,
    Coverage,
    MeshFinding,
    Quality,
    RankCoverage,
    Row,
    StepsFinding,
    Tabular,
    placed,
    places,
)

# The working behind an answer of `tracekit slowrank`: hypotheses, gaps of evidence, the rule; times in ms a
# step.

Outcome = Literal["named", "candidate", "below the threshold", "not proven", "not significant", "not first"]
"""What became of a hypothesis: the answer blames it, names it as a candidate, or why it does neither."""


@dataclass(frozen=True)
class Considered:
    """One hypothesis: what may be slow, how significant that is, and what the step would save without it.

    kind: `rank`, `ranks` (several at once), `stage`, `link`, `stalls in turn`, `slow in turn`, `uneven data`,
    `ranks without a trace`. significance: standard errors, `limit` what they must exceed; None where another test
    decides. low_ms ≤ likely_ms ≤ high_ms: what the step saves without it; the ends differ by unmatched waits and the
    model's error.
    """

    kind: str
    subject: str
    ranks: tuple[int, ...]
    longer_ms: float | None
    significance: float | None
    limit: float | None
    low_ms: float
    likely_ms: float
    high_ms: float
    outcome: Outcome


@dataclass(frozen=True)
class EvidenceGap:
    """What the evidence does not show: how much it could hide, at most, and what to do about it."""

    what: str
    could_hide_ms: float
    remedy: str


@dataclass(frozen=True)
class Explanation:
    """All hypotheses, the dearest first, all gaps, the widest first, the threshold of the verdict, and the rule."""

    considered: tuple[Considered, ...]
    gaps: tuple[EvidenceGap, ...]
    threshold_ms: float
    rule: str


Verdict = Literal["healthy", "slow_rank", "slow_link", "imbalance", "inconclusive"]
"""What the analysis found; `inconclusive` is an answer of its own and never means healthy."""
Cause = Literal[
    "gpu_compute",
    "cpu_launch",
    "cpu_contention",
    "host_stall",
    "dataloader",
    "network",
    "data_imbalance",
    "stage_imbalance",
    "memory",
    "host_copies",
    "unknown",
]
"""Names of causes; `tracekit.causes` says what each means, what decides it, and what to do about it."""


@dataclass(frozen=True)
class PathLevel:
    """One level of the descent: the ranks with this index made the other indices wait `lag_ms` a step."""

    dim: str
    index: int
    lag_ms: float


@dataclass(frozen=True)
class Evidence:
    """A measured quantity of the suspect beside the median of its peers.

    quantity: `own` time, `busy` compute, `gap`s or another that decides a cause; empty where it is shown alone.
    """

    what: str
    value: float
    peers_median: float | None
    unit: str
    quantity: str = ""


@dataclass(frozen=True)
class CauseShare:
    """The share of a suspect's excess, 0 to 1, that a cause explains; `sure` where it is most, so that it is named."""

    name: Cause
    share: float
    sure: bool = False


@dataclass(frozen=True)
class Mechanism:
    """What within a cause takes the time: `name` in `tracekit.mechanisms`, and its `share` of the excess (0 to 1).

    `sure`: whether it explains most of the excess and nothing else does; the suspect has it as its mechanism then.
    """

    name: str
    share: float
    detail: str  # what was measured, for a reader
    sure: bool = True


@dataclass(frozen=True)
class Suspect:
    """A rank that others waited for; `lost_ms_per_step` is how long, mean over analysed steps."""

    rank: int
    host: str | None
    coords: dict[str, int]
    lost_ms_per_step: float
    confidence: float
    steps: tuple[int, ...]
    cause: Cause
    evidence: tuple[Evidence, ...] = ()
    lost_ms_low: float | None = None  # unmatched waits keep their length; less residual and spread of peers
    lost_ms_high: float | None = None  # twice the price, at most the excess; plus both
    mechanisms: tuple[Mechanism, ...] = ()  # the two that explain most of its excess, the larger share first
    causes: tuple[CauseShare, ...] = ()  # the same of causes; empty where no comparison with peers decided

    @property
    def mechanism(self) -> Mechanism | None:
        """The mechanism that is sure; None where the evidence does not separate them."""
        return next((m for m in self.mechanisms if m.sure), None)


@dataclass(frozen=True)
class WhatIf:
    """Mean step time as measured, and as projected with all suspects typical."""

    step_ms: float
    without_suspects_ms: float
    slowdown: float


@dataclass(frozen=True)
class Cure:
    """One fault that is cured after those before it: what that saves a step, and the step then; ms."""

    cause: Cause
    ranks: tuple[int, ...]
    saved_ms: float
    saved_ms_low: float
    saved_ms_high: float
    step_ms: float


@dataclass(frozen=True)
class NetworkPart:
    """A part of the network that all slow transfers pass, and no typical one.

    kind: `way` (from one rank to another), `pair`, `send` or `receive` (of one rank), `rank`, `card`, `hosts` (the path
    between two), `host`, `rail` or `switch`. ranks: the ranks of the job at it.
    """

    kind: str
    name: str  # for a reader
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class ExpertWaits:
    """Waits in the all-to-alls of one group of experts; `ms[i][j]`: how long `ranks[j]` waits for `ranks[i]` a step.

    A heavy row is a source that comes late, whatever it sends; slow transfers are in `network_parts`.
    """

    ranks: tuple[int, ...]
    ms: tuple[tuple[float, ...], ...]  # by source and destination, mean over the analysed steps


@dataclass(frozen=True)
class SlowRankFinding(Tabular):
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
    coverage: Coverage = field(default_factory=Coverage)
    candidates: tuple[Suspect, ...] = ()  # of an inconclusive verdict: who may cost more than the threshold
    to_decide: str | None = None  # of an inconclusive verdict: a sentence that says what to record or add
    explanation: Explanation | None = None  # the working, where it was asked for
    to_record: tuple[int, ...] = ()  # of an inconclusive verdict: ranks whose traces would decide, sorted
    on_gpu: bool = True  # whether any rank computes on a GPU
    cures: tuple[
        Cure, ...
    ] = ()  # where faults of several kinds are proven: the answer's, then those next in line
    network_parts: tuple[
        NetworkPart, ...
    ] = ()  # of a slow link: the parts that its transfers do not separate
    expert_waits: ExpertWaits | None = (
        None  # of the first suspect's group of experts, else of the one that waits most
    )

    def columns(self) -> Columns:
        """A suspect or a candidate a row: its place, why it is named, and what it costs."""
        costs = ("lost_ms_per_step", "lost_ms_low", "lost_ms_high", "confidence")
        return {
            "rank": "int64", "host": "string", **places(self.mesh), "role": "string", "cause": "string",
            **dict.fromkeys(costs, "double"),
        }  # fmt: skip

    def rows(self) -> Iterator[Row]:
        """The suspects, then the candidates of an open answer; `role` says which."""
        for role, named in (("suspect", self.suspects), ("candidate", self.candidates)):
            for s in named:
                costs = (s.lost_ms_per_step, s.lost_ms_low, s.lost_ms_high, s.confidence)
                yield s.rank, s.host, *placed(s.coords, self.mesh), role, s.cause, *costs

    def headline(self) -> str:
        """The verdict and why."""
        return f"{self.verdict}: {self.reason}"
