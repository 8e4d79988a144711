"""The answer of `numerics compare` as data: text, JSON and HTML come from these objects alone."""

from dataclasses import dataclass
from typing import Final, Literal

COMPARE_SCHEMA: Final = "numerics.compare/1"

NOT_CHECKED: Final = "; not checked: "
"""Where a reason ends and names what its verdict does not cover; reports put that beside the verdict's word."""

Verdict = Literal[
    "identical",
    "drift",
    "rounding",
    "precision_policy",
    "reporting_only",
    "signed_zero",
    "bug",
    "incomparable",
    "undecided",
]
"""What the comparison found; docs/numerics.md says what each demands."""
Proof = Literal["matched_order", "local", "bound", "infeasible_by_plan", "ladder", "invariant", "none"]
"""What the verdict rests on."""


@dataclass(frozen=True)
class Divergence:
    """The first place where the run differs; a field that does not apply is None or empty.

    `step` is -1 before the first step. `collective` reads axis/operation#label. `ranks` are the global ranks on which
    the tensor differs. `evidence` says in words how the comparison saw it.
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
    """Numbers of global tensors: `explained` differ as the verdict says, `unexplained` differ from the replay as well.

    Without a replay all that differ are unexplained, unless the proof found that nothing but order or rounding is left.
    """

    compared: int = 0
    identical: int = 0
    explained: int = 0
    unexplained: int = 0
    only_one: int = 0  # recorded by one of the runs only
    rows_replayed: int = 0  # rows of the run compared with its replay
    rows_different: int = 0


@dataclass(frozen=True)
class TensorDifference:
    """One of the tensors that differ most from the baseline's.

    `rel` is |a - b| / |b|, `ratio` is <a,b>/<b,b>; `max_ulp`, `cosine` and `ratio` need the values (else None).
    """

    tensor: str
    step: int
    max_ulp: float | None
    rel: float | None
    cosine: float | None
    ratio: float | None


@dataclass(frozen=True)
class Cell:
    """One cell of the picture: a module at a step and phase, and how many of its tensors differ.

    `rel` is the largest relative difference among them.
    """

    module: str
    step: int
    phase: str
    tensors: int
    differ: int
    unexplained: int
    rel: float | None


@dataclass(frozen=True)
class CompareFinding:
    """The answer of `numerics compare` (JSON contract `numerics.compare/1`).

    `reason` is the verdict in one sentence, `explanation` the relation of the first divergence to the right value.
    `parallel`, `baseline` and `replay` are the run folders; `next` is a command that would decide more. `not_checked`
    lists what a local proof took as it was recorded, "what: why"; the verdict does not cover it.
    """

    verdict: Verdict
    proof: Proof
    reason: str
    parallel: str
    baseline: str | None
    replay: str | None
    first_divergence: Divergence | None = None
    explanation: str | None = None
    tensors: Counts = Counts()
    largest_differences: tuple[TensorDifference, ...] = ()
    invariants: tuple[str, ...] = ()  # broken ones, in words
    plan: tuple[str, ...] = ()  # differences between recorded and declared plan
    could_not_have_seen: tuple[str, ...] = ()
    next: str | None = None
    notes: tuple[str, ...] = ()
    cells: tuple[Cell, ...] = ()
    not_checked: tuple[str, ...] = ()
