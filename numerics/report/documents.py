"""The answers of `numerics` as JSON: the types that their writers are checked against."""

from typing import Final, Literal, TypedDict

from numerics.findings import Proof, Verdict
from numerics.precision.ladder import Shape


class RunsDocument(TypedDict):
    """The folders of the captures."""

    parallel: str
    baseline: str | None
    replay: str | None


class DivergenceDocument(TypedDict):
    """The first place where the runs differ; `step` is -1 before the first step."""

    step: int
    phase: str
    microbatch: int | None
    module: str
    tensor: str
    collective: str | None
    axis: str | None
    ranks: list[int]
    evidence: str


class CountsDocument(TypedDict):
    """Numbers of global tensors."""

    compared: int
    identical: int
    explained: int
    unexplained: int
    only_in_one: int


class RowsDocument(TypedDict):
    """Rows of the run beside its replay's."""

    compared: int
    different: int


class DifferenceDocument(TypedDict):
    """One of the tensors that differ most; null is not known, or not finite."""

    tensor: str
    step: int
    max_ulp: float | None
    rel: float | None
    cosine: float | None
    ratio: float | None


class CellDocument(TypedDict):
    """How many tensors of a module differ at a step and phase."""

    module: str
    step: int
    phase: str
    tensors: int
    differ: int
    unexplained: int
    rel: float | None


class RungDocument(TypedDict):
    """One tensor on the ladder; `relative` by policy, null where it is not comparable."""

    step: int
    phase: str
    kind: str
    tensor: str
    relative: list[float | None]
    slope: float | None
    shape: Shape


class LadderDocument(TypedDict):
    """The answer of `numerics ladder`; `tensors` counts them by shape."""

    schema: Literal["numerics.ladder/1"]
    verdict: Literal["identical", "drift", "bug", "undecided"]
    proof: Literal["none", "ladder"]
    reason: str
    policies: list[str]
    first: RungDocument | None
    tensors: dict[Shape, int]
    rungs: list[RungDocument]
    notes: list[str]


class CompareDocument(TypedDict):
    """The answer of `numerics compare`; `ladder` is null where none was given, kept or asked for."""

    schema: Literal["numerics.compare/1"]
    verdict: Verdict
    proof: Proof
    reason: str
    runs: RunsDocument
    first_divergence: DivergenceDocument | None
    explanation: str | None
    tensors: CountsDocument
    replayed_rows: RowsDocument
    worst: list[DifferenceDocument]
    invariants: list[str]
    plan: list[str]
    could_not_have_seen: list[str]
    next: str | None
    notes: list[str]
    modules: list[CellDocument]
    not_checked: list[str]
    ladder: LadderDocument | None


class RoundDocument(TypedDict):
    """The steps that one pair of runs recorded, and those of them that differ."""

    probed: list[int]
    divergent: list[int]


class BisectDocument(TypedDict):
    """The answer of `numerics bisect`; `first_step` is null where no step differs, -1 before the first."""

    schema: Literal["numerics.bisect/1"]
    steps: int
    first_step: int | None
    rounds: list[RoundDocument]
    compare: CompareDocument


class BufferDocument(TypedDict):
    """One gradient buffer; errors are relative to the sum in FP64, null where not finite."""

    tensor: str
    kept: str
    micro_batches: int
    measured: float | None
    predicted: float | None
    rounded_once: float | None
    in_fp32: float | None
    extra_bytes: int
    needs_fp32: bool


class AdviceDocument(TypedDict):
    """The answer of `numerics advise`; memory in bytes."""

    schema: Literal["numerics.advise/1"]
    run: str
    ranks: int
    steps: int
    budget: float
    need_fp32: list[str]
    extra_bytes: int
    buffers: list[BufferDocument]
    notes: list[str]


class PlanDifferenceDocument(TypedDict):
    """One way in which two plans differ at one reduction."""

    label: str
    axis: str
    op: str
    phase: str
    field: str
    left: str
    right: str
    ranks: list[int]
    sentence: str
    order_only: bool


class LocalDocument(TypedDict):
    """A setting besides reductions that decides bits, and differs."""

    name: str
    left: str
    right: str


class TensorGroupDocument(TypedDict):
    """The captured tensors of one step, phase and kind, and those of them that may differ."""

    step: int
    phase: str
    kind: str
    captured: int
    may_differ: list[str]


class PlanDocument(TypedDict):
    """The answer of `numerics plan`."""

    schema: Literal["numerics.plan/1"]
    runs: list[str]
    reductions: int
    differences: list[PlanDifferenceDocument]
    local: list[LocalDocument]
    tensors: list[TensorGroupDocument]


DOCUMENTS: Final[dict[str, type]] = {
    "compare": CompareDocument,
    "plan": PlanDocument,
    "ladder": LadderDocument,
    "advise": AdviceDocument,
    "bisect": BisectDocument,
}
"""The answers by the command that gives them."""
