"""Decides the verdict from all evidence, with the proof it rests on.

run = baseline in bits                         identical        (with a broken invariant: bug)
only signs of zeros / only reported values     signed_zero / reporting_only
run = its matched replay, baseline differs     drift            proof matched_order
run ≠ its matched replay, but each value is    rounding         proof bound
what those before it give, within rounding
run ≠ its matched replay                       bug, or precision_policy where it is only rounded otherwise
no replay: a broken invariant, or a            bug              proof invariant, infeasible_by_plan
difference that no order explains
else                                           undecided, with the command that would decide
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from numerics.columns import Columns
from numerics.comparison.broken import Broken
from numerics.comparison.explanations.explanation import Explanation
from numerics.comparison.joins.row_table import RowTable
from numerics.comparison.joins.tensor_table import Status, TensorTable
from numerics.comparison.next_step import what_decides, what_tells_rounding
from numerics.comparison.unequal_buffers import unequal_buffers
from numerics.findings import Divergence, Proof, Verdict
from numerics.order.plan_differences import PlanDifference
from numerics.schema import LEARNING_RATE
from numerics.thresholds.comparison import CHAOTIC_GROWTH, SUDDEN_GROWTH


@dataclass(frozen=True)
class Decision:
    """Verdict, proof and the reason in one sentence; `next` is the command that would decide more.

    `where` is the place that the reason is about, if it is another than the first difference from the baseline.
    """

    verdict: Verdict
    proof: Proof
    reason: str
    next: str | None = None
    where: Divergence | None = None


@dataclass(frozen=True)
class Apart:
    """How two runs part by random numbers, in words; `certain` says that the records show these to be the cause.

    `inputs` says that already the model's inputs differ so.
    """

    sentence: str
    certain: bool = True
    inputs: bool = False


@dataclass(frozen=True)
class Case:
    """All evidence about a run.

    `tensors` is None without a baseline; `replay` and `rows` are None without a usable replay, and `no_replay` says
    why. `plan` lists how the recorded plan differs from the declared one. `beyond_plan` are rows that differ from the
    baseline though no difference between the two runs' plans affects them. `rounding` says that the forced replay
    leaves nothing but rounding, `beyond` what it does leave, `unsure` what may be either. `decide` is the command that
    would decide. `apart` says that run and baseline drew other random numbers, `goes_on` from which step of the
    baseline the run goes on, `begins` that it does so from other weights.
    """

    run: Columns
    baseline: Columns | None
    tensors: TensorTable | None
    broken: Sequence[Broken]
    replay: Columns | None = None
    rows: RowTable | None = None
    plan: Sequence[PlanDifference] = ()
    beyond_plan: tuple[int, ...] = ()
    explanation: Explanation | None = None
    rounding: str | None = None
    beyond: str = ""
    unsure: str | None = None
    no_replay: str = "there is no matched replay"
    decide: str = ""
    apart: Apart | None = None
    goes_on: str = ""
    begins: str = ""


def decide(case: Case) -> Decision:
    """Return the decision on a comparable case."""
    kinds = baseline_kinds(case)
    if kinds is not None and not kinds.real:
        return equal_runs(case, kinds)
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
    state = "run and baseline differ" if kinds is not None else "there is no baseline"
    state += f" ({case.apart.sentence})" if case.apart is not None else ""
    buffers = unequal_buffers(case.run)
    apart = f"; {buffers}: different by design if each rank takes its own statistics" if buffers else ""
    return Decision("undecided", "none", f"{state}, and {case.no_replay}{apart}", case.decide)


@dataclass(frozen=True)
class Kinds:
    """The kinds of difference between run and baseline: of computed values, of signs of zeros, of reported values."""

    real: bool
    signed_zero: bool
    reporting: bool


def computed_in_common(run: Columns, tensors: TensorTable) -> np.ndarray:
    """Mark the entries that both runs recorded and computed: no inputs, no rates, no state that only counts."""
    given = np.isin(tensors.kind, [run.names.number(kind) for kind in ("input", "optimizer")])
    rate = np.array([run.names.text(int(n)).startswith(LEARNING_RATE) for n in tensors.tensor], bool)
    return np.asarray((tensors.status != Status.UNMATCHED) & ~given & ~rate)


def baseline_kinds(case: Case) -> Kinds | None:
    """Return the kinds of difference from the baseline; None without a baseline."""
    if case.tensors is None or case.baseline is None:
        return None
    metric = np.isin(case.tensors.kind, [case.run.names.number("metric")])
    different = case.tensors.status == Status.DIFFERENT
    zero = case.tensors.status == Status.SIGNED_ZERO
    return Kinds(bool((different & ~metric).any()), bool(zero.any()), bool((different & metric).any()))


def equal_runs(case: Case, kinds: Kinds) -> Decision:
    """Decide a case in which no computed value differs from the baseline."""
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
    if not _anything_computed(case):
        return Decision(
            "undecided",
            "none",
            "the runs have nothing in common but first values, which are equal: no output, gradient or update is in "
            "both records",
            "capture a step that trains; for forwards without gradients give `watch` no optimizer",
        )
    return Decision("identical", "none", "every tensor that both runs recorded is equal in bits")


def _anything_computed(case: Case) -> bool:
    """Return whether a tensor that both runs recorded was computed in a step."""
    return case.tensors is None or bool(
        (computed_in_common(case.run, case.tensors) & (case.tensors.step >= 0)).any()
    )


def _replayed(case: Case, run: Columns, rows: RowTable) -> Decision:
    """Decide a case by its matched replay.

    A computed value that differs from the replay is a bug. Where none differs, the run contradicts neither itself nor
    the replay, and the replay reaches every step that matters, order alone explains the difference.
    """
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
            what_decides(case.run.capture),
        )
    if case.tensors is None:
        return Decision(
            "identical", "matched_order", "the run equals the matched replay of its own order, bit for bit"
        )
    if case.begins:
        return Decision(
            "undecided", "none", f"the run equals its matched replay bit for bit, but {case.begins}"
        )
    return Decision(
        "drift",
        "matched_order",
        "the run equals its matched replay bit for bit: it differs from the baseline by the order of its sums alone",
    )


def _differs(case: Case, rows: RowTable) -> Decision:
    """Return the decision if computed values differ from the matched replay: a bug, or only another number format."""
    count = len(rows.different)
    if case.rounding is not None:
        return Decision("rounding", "bound", case.rounding)
    if case.unsure is not None:
        return Decision("undecided", "none", case.unsure, "capture the run in FP32, and compare again")
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
        "of the run's own order" + (f"; {case.beyond}" if case.beyond else ""),
        what_tells_rounding(case.run.capture) if case.explanation and case.explanation.rounding else None,
    )


def _uncovered(case: Case, rows: RowTable) -> str | None:
    """Return which differences the replay does not reach, in words; None where it reaches all that matter.

    Steps after the replayed ones may differ where the replayed ones do already: their weights differ, and so does
    everything computed from them. A jump in size there would be something new.
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
        if step > last and after > SUDDEN_GROWTH * before:
            return f"does not reach step {step}, where the difference jumps from {before:.2g} to {after:.2g}"
    return None


def growth(tensors: TensorTable) -> list[tuple[int, float]]:
    """Return (step, median relative difference of the tensors that differ) by step."""
    chosen = (tensors.status == Status.DIFFERENT) & np.isfinite(tensors.relative) & (tensors.step >= 0)
    steps = np.unique(tensors.step[chosen])
    return [(int(s), float(np.median(tensors.relative[chosen & (tensors.step == s)]))) for s in steps]


def growth_sentence(tensors: TensorTable) -> str | None:
    """Return a sentence where an order difference grew chaotically over the steps; None where it did not grow."""
    sizes = growth(tensors)
    if len(sizes) < 2 or not sizes[-1][1] > CHAOTIC_GROWTH * sizes[0][1]:
        return None
    (first, small), (last, large) = sizes[0], sizes[-1]
    return (
        f"chaotic growth: the difference of order is {small:.2g} at step {first} and has grown to {large:.2g} "
        f"by step {last}, fed back through the weights"
    )
