"""What a comparison says, as data: text, JSON and HTML come from these objects alone (`numerics.compare/1`)."""

from dataclasses import dataclass
from typing import Final, Literal

COMPARE_SCHEMA: Final = "numerics.compare/1"

Verdict = Literal[
    "identical",
    "drift",
    "precision_policy",
    "reporting_only",
    "signed_zero",
    "bug",
    "incomparable",
    "undecided",
]
Proof = Literal["matched_order", "infeasible_by_plan", "ladder", "invariant", "none"]


@dataclass(frozen=True)
class Divergence:
    """The first place where the run computed something else; None or empty where it does not apply.

    `step` is -1 before the first step; `collective` reads axis/operation#label; `ranks` are the global ranks on
    which this tensor differs; `evidence` says in words what was seen there.
    """

    step: int
    phase: str
    micro_batch: int | None
    module: str
    tensor: str
    collective: str | None
    axis: str | None
    ranks: tuple[int, ...]
    evidence: str = ""


@dataclass(frozen=True)
class Counts:
    """Global tensors compared; `explained` differ by order alone, `unexplained` differ from the replay too."""

    compared: int = 0
    identical: int = 0
    explained: int = 0
    unexplained: int = 0
    only_one: int = 0  # recorded by one of the runs only
    rows_replayed: int = 0  # rows of the run compared with its replay
    rows_different: int = 0


@dataclass(frozen=True)
class Worst:
    """One of the tensors that differ most. `max_ulp` and `cosine` need values; `ratio` is <a,b>/<b,b>."""

    tensor: str
    step: int
    max_ulp: float | None
    rel: float | None
    cosine: float | None
    ratio: float | None


@dataclass(frozen=True)
class Cell:
    """One field of the picture: a module at a step and phase, with the share of its tensors that differ."""

    module: str
    step: int
    phase: str
    tensors: int
    differ: int
    unexplained: int
    rel: float | None


@dataclass(frozen=True)
class CompareFinding:
    """The answer of `numerics compare`. `against` says what was replayed, `reason` is one sentence for a reader."""

    verdict: Verdict
    proof: Proof
    reason: str
    parallel: str
    baseline: str | None
    replay: str | None
    first_divergence: Divergence | None = None
    explanation: str | None = None
    tensors: Counts = Counts()
    worst: tuple[Worst, ...] = ()
    invariants: tuple[str, ...] = ()  # broken ones, in words
    plan: tuple[str, ...] = ()  # differences between recorded and declared plan
    could_not_have_seen: tuple[str, ...] = ()
    next: str | None = None
    notes: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
