"""The JSON answers as types, field by field: the checker holds the writers to them, and `schemas` are made of them.

Fields may be added within a schema number; a change of meaning gets a new number. Times are ms.
"""

from typing import Annotated, Literal, NotRequired, TypedDict

from msgspec import Meta

from tracekit.findings import MeshSource, Verdict
from tracekit.findings.hang import CulpritKind, HangVerdict
from tracekit.findings.slowrank import Outcome

Ms = Annotated[float | None, Meta(description="milliseconds, rounded to 0.1 µs; null where it is not finite")]
Number = Annotated[float | None, Meta(description="null where it is not finite")]
CauseName = Annotated[str, Meta(description="a cause; one that a reader does not know means unknown")]
Place = Annotated[dict[str, int], Meta(description="index on each axis of the mesh: tp, cp, pp, dp")]


class RejectedDocument(TypedDict):
    """A file that could not be used."""

    path: str
    reason: str


class RanksDocument(TypedDict):
    """The ranks that an answer rests on; `missing` are expected ranks without a usable file."""

    expected: int
    read: int
    missing: list[int]
    rejected: list[RejectedDocument]


class ProgramDocument(TypedDict):
    """The ranks of a program of a job that has several, and the sizes of its axes."""

    ranks: list[int]
    sizes: dict[str, int]


class MeshDocument(TypedDict):
    """Axes from inner to outer, their sizes, and where they come from; `parts`: sizes of axes that divide others.

    programs: of a job that has several; then `sizes` are the sums of stages and replicas, and the largest other sizes.
    """

    order: list[str]
    sizes: dict[str, int]
    source: MeshSource
    parts: NotRequired[dict[str, int]]
    programs: NotRequired[list[ProgramDocument]]


class StepsDocument(TypedDict):
    """Numbers of the analysed steps, and their median time."""

    analysed: list[int]
    median_ms: Ms


class CoverageDocument(TypedDict):
    """Share (0 to 1) of exposed communication time that was matched with all members; null where none was exposed."""

    matched: float | None
    by_axis: dict[str, float]


class QualityDocument(TypedDict):
    """A repair or doubt about one file, or about the run where no path is given."""

    kind: str
    path: NotRequired[str]
    count: NotRequired[int]
    kept_events: NotRequired[int]
    detail: NotRequired[str]


class LevelDocument(TypedDict):
    """A level of the descent: the ranks with this index made the other indices wait `lag_ms` a step."""

    dim: str
    index: int
    lag_ms: Ms


class EvidenceDocument(TypedDict):
    """A measured quantity of a suspect beside the median of its peers."""

    what: str
    value: Number
    peers_median: Number
    unit: str


class CauseShareDocument(TypedDict):
    """A cause with the share of the excess that it explains; `named` where that is 80 % or more."""

    name: CauseName
    share: float
    named: bool


class MechanismDocument(TypedDict):
    """What within a cause takes the time, with its share of the excess; `named` where nothing else explains as much."""

    name: str
    share: float
    detail: str
    named: bool


class SuspectDocument(TypedDict):
    """A rank that others waited for; the interval is what may be, given what was not matched."""

    rank: int
    host: str | None
    coords: Place
    lost_ms_per_step: Ms
    lost_ms_low: Ms
    lost_ms_high: Ms
    confidence: float
    steps: list[int]
    cause: CauseName
    causes: list[CauseShareDocument]
    mechanisms: list[MechanismDocument]
    evidence: list[EvidenceDocument]


class WithoutDocument(TypedDict):
    """The mean step as recorded, and with all suspects typical."""

    step_ms: Ms
    without_suspects_ms: Ms
    slowdown: Number


class ConsideredDocument(TypedDict):
    """A hypothesis of `slowrank --explain`: its significance in standard errors, its price, and what became of it."""

    kind: str
    subject: str
    ranks: list[int]
    longer_ms: Ms | None
    significance: Number
    limit: Number
    low_ms: Ms
    likely_ms: Ms
    high_ms: Ms
    outcome: Outcome


class GapDocument(TypedDict):
    """What the evidence does not show, how much that could hide, and the remedy."""

    what: str
    could_hide_ms: Ms
    remedy: str


class ExplanationDocument(TypedDict):
    """The working of an answer: hypotheses, gaps, the threshold and the rule that chose."""

    considered: list[ConsideredDocument]
    gaps: list[GapDocument]
    threshold_ms: Ms
    rule: str


class CureDocument(TypedDict):
    """One fault that is cured after those before it: what that saves a step, and the step then."""

    cause: CauseName
    ranks: list[int]
    saved_ms: Ms
    saved_ms_low: Ms
    saved_ms_high: Ms
    step_ms: Ms


class NetworkPartDocument(TypedDict):
    """A part of the network that all slow transfers pass, and no typical one; `ranks` are those at it."""

    kind: str
    name: str
    ranks: list[int]


class ExpertWaitsDocument(TypedDict):
    """Waits in all-to-alls of a group of experts: `ms[i][j]` a step is how long `ranks[j]` waits for `ranks[i]`."""

    ranks: list[int]
    ms: list[list[float]]


class SlowRankDocument(TypedDict):
    """The answer of `tracekit slowrank`; `explanation` is there where `--explain` asked for it."""

    schema: Literal["tracekit.slowrank/1"]
    ranks: RanksDocument
    mesh: MeshDocument
    steps: StepsDocument
    verdict: Verdict
    cause: CauseName | None
    reason: str
    path: list[LevelDocument]
    suspects: list[SuspectDocument]
    candidates: list[SuspectDocument]
    to_decide: str | None
    to_record: list[int]
    what_if: WithoutDocument
    cures: list[CureDocument]
    network_parts: list[NetworkPartDocument]
    expert_waits: ExpertWaitsDocument | None
    coverage: CoverageDocument
    quality: list[QualityDocument]
    notes: list[str]
    explanation: NotRequired[ExplanationDocument]


class GroupDocument(TypedDict):
    """A process group; `dim` is its axis, null where that is unknown."""

    name: str
    desc: str
    dim: str | None
    ranks: list[int]


class CallDocument(TypedDict):
    """A call of a group; operation, sizes and dtype are null where no dump holds it."""

    op: str | None
    seq: int
    input_sizes: list[list[int]] | None
    dtype: str | None


class SideDocument(TypedDict):
    """One version of a mismatched call, and the ranks that made it."""

    ranks: list[int]
    call: str
    stack: list[str]


class OpenCallDocument(TypedDict):
    """A call that members of a group made in several versions, where the dumps do not show the right one."""

    group: GroupDocument
    seq: int
    sides: list[SideDocument]


class CulpritDocument(TypedDict):
    """A rank that made the others wait, and the call in which it did; frontiers are sequence numbers."""

    rank: int
    host: str | None
    kind: CulpritKind
    group: GroupDocument
    collective: CallDocument
    last_enqueued: int | None
    group_enqueued: int
    last_completed: int | None
    stack: list[str]
    sides: NotRequired[list[SideDocument]]
    how: NotRequired[str]


class HangDocument(TypedDict):
    """The answer of `tracekit hang`."""

    schema: Literal["tracekit.hang/1"]
    ranks: RanksDocument
    mesh: MeshDocument | None
    verdict: HangVerdict
    reason: str
    quality: list[QualityDocument]
    culprits: list[CulpritDocument]
    first_group: str | None
    victims: list[int]
    candidates: list[int]
    to_decide: str | None
    open_calls: list[OpenCallDocument]
    waits: list[SideDocument]
