"""From evidence to a verdict: one decision, in one place, with the proof it rests on.

run = baseline in bits                         identical        (a broken invariant is a bug all the same)
only signs of zeros / only reported values     signed_zero / reporting_only
run = its matched replay, baseline differs     drift            proof matched_order
run ≠ its matched replay                       bug, or precision_policy where it is only rounded elsewhere
a broken invariant, or a plan that cannot      bug              proof invariant, infeasible_by_plan
be the declared one, and no replay
else                                           undecided, with the command that would decide
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np

from numerics.columns import Frame
from numerics.comparison.invariants import Broken
from numerics.comparison.missing_addends import Explanation
from numerics.comparison.row_table import RowTable
from numerics.comparison.tensor_table import Status, TensorTable
from numerics.findings import Proof, Verdict
from numerics.order.order_plan import PlanDifference

_JUMP: Final = 1000.0
"""Growth from one step to the next that feedback through the weights does not explain without a replay."""
_GREW: Final = 10.0


@dataclass(frozen=True)
class Decision:
    """Verdict, proof and the sentence that says why; `next` is the command that would decide more."""

    verdict: Verdict
    proof: Proof
    reason: str
    next: str | None = None


@dataclass(frozen=True)
class Case:
    """All evidence about a run.

    `tensors` is None without a baseline; `replay` and `rows` without a usable replay, `no_replay` says why. `plan` is
    how the recorded plan differs from the declared one; `beyond_plan` rows that differ from the baseline though no
    difference between the two runs' plans reaches them. `decide` is the command that would decide.
    """

    run: Frame
    baseline: Frame | None
    tensors: TensorTable | None
    broken: Sequence[Broken]
    replay: Frame | None = None
    rows: RowTable | None = None
    plan: Sequence[PlanDifference] = ()
    beyond_plan: tuple[int, ...] = ()
    explanation: Explanation | None = None
    no_replay: str = "there is no matched replay"
    decide: str = ""


def decide(case: Case) -> Decision:
    """Decide a comparable case."""
    kinds = baseline_kinds(case)
    if kinds is not None and not kinds.real:
        return _equal(case, kinds)
    if case.rows is not None and case.replay is not None:
        return _replayed(case, case.run, case.rows)
    if case.broken:
        return Decision("bug", "invariant", case.broken[0].sentence)
    if case.beyond_plan:
        tensor = case.run.name("tensor", case.beyond_plan[0])
        return Decision(
            "bug",
            "infeasible_by_plan",
            f"{tensor} differs from the baseline, and no difference of order reaches it",
        )
    what = "run and baseline differ" if kinds is not None else "there is no baseline"
    return Decision("undecided", "none", f"{what}, and {case.no_replay}", case.decide)


@dataclass(frozen=True)
class Kinds:
    """Which kinds of difference there are between run and baseline."""

    real: bool
    signed_zero: bool
    reporting: bool


def baseline_kinds(case: Case) -> Kinds | None:
    """Classify the differences from the baseline; None without a baseline."""
    if case.tensors is None or case.baseline is None:
        return None
    metric = np.isin(case.tensors.kind, [case.run.names.number("metric")])
    different = case.tensors.status == Status.DIFFERENT
    zero = case.tensors.status == Status.SIGNED_ZERO
    return Kinds(bool((different & ~metric).any()), bool(zero.any()), bool((different & metric).any()))


def _equal(case: Case, kinds: Kinds) -> Decision:
    """Nothing that computes differs from the baseline."""
    if case.broken:
        return Decision(
            "bug",
            "invariant",
            f"run and baseline are equal, but the run contradicts itself: {case.broken[0].sentence}",
        )
    if kinds.reporting:
        return Decision(
            "reporting_only",
            "none",
            "only reported values differ; everything that feeds the computation is equal",
        )
    if kinds.signed_zero:
        return Decision("signed_zero", "none", "the only differences are signs of zeros")
    return Decision("identical", "none", "every tensor that both runs recorded is equal in bits")


def _replayed(case: Case, run: Frame, rows: RowTable) -> Decision:
    metric = run.named("kind", "metric")
    wrong = rows.different
    if len(wrong[~metric[wrong]]):
        return _differs(case, rows)
    if case.broken:
        return Decision("bug", "invariant", case.broken[0].sentence)
    if len(wrong):
        return Decision(
            "reporting_only",
            "matched_order",
            "the run equals its matched replay but for values that are only reported",
        )
    uncovered = _uncovered(case, rows)
    if uncovered is not None:
        return Decision(
            "undecided",
            "none",
            f"the matched replay equals the run but {uncovered}",
            "numerics replay RUN --out RUN/replay",
        )
    if case.tensors is None:
        return Decision(
            "identical", "matched_order", "the run equals the matched replay of its own order, bit for bit"
        )
    return Decision(
        "drift",
        "matched_order",
        "the run equals its matched replay bit for bit: it differs from the baseline by the order of its sums alone",
    )


def _differs(case: Case, rows: RowTable) -> Decision:
    count = len(rows.different)
    if case.explanation is not None and case.explanation.dtype is not None:
        return Decision(
            "precision_policy",
            "matched_order",
            f"{count} of {rows.compared} rows differ from the matched replay: {case.explanation.text}",
        )
    return Decision(
        "bug",
        "matched_order",
        f"no order of sums explains it: {count} of {rows.compared} rows differ from the matched replay "
        "of the run's own order",
    )


def _uncovered(case: Case, rows: RowTable) -> str | None:
    """Say what of the differences the replay does not reach; None where it reaches all that matter.

    Steps after the replayed ones may differ where the replayed ones do already: the weights differ, and everything
    after them. A jump in size there would be something new.
    """
    if not rows.compared:
        return "has no row in common with it"
    if case.replay is None or case.tensors is None:
        return None
    last = int(case.replay["step"].max())
    sizes = growth(case.tensors)
    if not sizes:
        return None
    first = min(step for step, _ in sizes)
    if first > last:
        return f"does not reach step {first}, where the difference begins"
    for (_, before), (step, after) in pairwise(sizes):
        if step > last and after > _JUMP * before:
            return f"does not reach step {step}, where the difference jumps from {before:.2g} to {after:.2g}"
    return None


def growth(tensors: TensorTable) -> list[tuple[int, float]]:
    """Median relative difference of each step's tensors that differ, by step."""
    chosen = (tensors.status == Status.DIFFERENT) & np.isfinite(tensors.relative) & (tensors.step >= 0)
    steps = np.unique(tensors.step[chosen])
    return [(int(s), float(np.median(tensors.relative[chosen & (tensors.step == s)]))) for s in steps]


def growth_sentence(tensors: TensorTable) -> str | None:
    """Say that an order difference grew chaotically over the steps; None where it did not grow."""
    sizes = growth(tensors)
    if len(sizes) < 2 or not sizes[-1][1] > _GREW * sizes[0][1]:
        return None
    (first, small), (last, large) = sizes[0], sizes[-1]
    return (
        f"chaotic growth: the difference of order is {small:.2g} at step {first} and has grown to {large:.2g} "
        f"by step {last}, fed back through the weights"
    )
