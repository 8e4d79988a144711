"""Gaps of the evidence: waits that were not matched, and bounds of what curing a rank saves in spite of them.

An unmatched operation may be a transfer or a wait. The step model keeps its recorded length, so a price from that model
is a lower bound. Here every such operation may shrink to the shortest one of its message. Where transfers are slow in
most groups, the inferred groups probably lack a member.
"""

from dataclasses import dataclass, replace
from typing import Self

import numpy as np

from tracekit.analysis.slowrank.price import Price, may_cost_ns, rank_doubt_ns
from tracekit.case.case import Case
from tracekit.case.cures import beside_waits, cured_ns, likely_saved_ns
from tracekit.case.wording import fewest_traces
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.step_graph.replay import StepModel
from tracekit.step_graph.statistics import confidence
from tracekit.step_graph.table_model import TableModel
from tracekit.thresholds.slowrank import (
    COVERAGE_WHOLE,
    MAJORITY,
    MINOR,
    NEARLY_ALL,
    PEERS_SAMPLED,
    PROVING_STEPS,
)
from tracekit.units import I64, ms


@dataclass(frozen=True)
class Undecided:
    """Ranks (rows of Steps, worst first), each with a price that may be its low end; ns a step.

    At the low end every unmatched operation keeps its recorded length, at the high end it shrinks to its transfer.
    """

    rows: tuple[int, ...]
    prices: tuple[Price, ...]
    why: str = ""  # the clause on why the price is not known more exactly
    decide: str = ""  # what would decide

    @property
    def most(self) -> float:
        """What the first rank costs at most."""
        return self.prices[0].high

    def from_zero(self) -> Self:
        """Return the same ranks with prices from zero, as where chance or a design may explain the excess."""
        return replace(self, prices=tuple(Price.up_to(price.high) for price in self.prices))


def unread(case: Case) -> bool:
    """Whether too little communication was matched to judge it, slow or healthy, and it takes long enough to matter."""
    matched = case.coverage.matched
    return matched is not None and matched < MINOR and case.exposed_ns > case.threshold_ns


def compared_little(case: Case) -> bool:
    """Whether one step was compared and most operations lie outside it, in parts of steps that windows cut.

    A fault that comes and goes may lie there. What the user left out by choice of steps does not count.
    """
    steps = case.steps
    if not steps.labelled or (steps.shares == 1.0).sum() > 1:
        return False
    cut = (case.ops.step == NO_STEP) | np.isin(case.ops.step, steps.partial)
    return bool(cut.sum() > case.analysed.sum())


def most_ns(case: Case, rows: I64) -> float:
    """The most that a step could save if `rows` worked like their peers, ns; at most their excess.

    The model's own error is added: the model may have missed an effect of that size.
    """
    saved = case.model.recorded_ns - cured_ns(case, case.free_model, rows) + case.residual_ns
    excess = float(np.nansum(np.maximum(case.found.mean[rows], 0.0)))
    return min(max(saved, 0.0), excess)


def least_ns(case: Case, rows: I64) -> float:
    """The least that a step saves if `rows` work like their peers, ns.

    The larger of two bounds: the saving if unmatched operations keep their recorded length, and the saving by the step
    model beyond its error, which takes unmatched waits that it reproduces for waits for these ranks.
    """
    likely = _saved_ns(case, case.slowest or case.model, rows)
    least = case.least_saved(_saved_ns(case, case.pinned_model, rows), likely - early_use_ns(case, rows))
    replayed, _ = beside_waits(case, rows, least)
    return max(replayed, 0.0)


def early_use_ns(case: Case, rows: I64) -> float:
    """What a cure of `rows` saves less if compute uses messages as soon as it can, ns a step; 0 if traces show when.

    Without their delay, `rows` would wait for messages that now come meanwhile.
    """
    model, early = case.seen or case.model, case.early_model
    return 0.0 if early is model else max(_saved_ns(case, model, rows) - _saved_ns(case, early, rows), 0.0)


def _saved_ns(case: Case, model: StepModel | TableModel, rows: I64) -> float:
    """The saving by `model` if `rows` work like their peers, ns a step."""
    return model.recorded_ns - cured_ns(case, model, rows)


def is_shown(case: Case) -> bool:
    """Whether a replay shows what a cure saves: all waits were matched, and compute beside them was recorded."""
    return case.coverage.matched == 1 and case.concealing is None


def undecided(case: Case) -> Undecided | None:
    """The ranks with a significant excess that may cost the threshold or more; None where their bound is below it."""
    return left_undecided(case, case.significant(case.threshold_ns))


def tokens_may_explain(case: Case, row: int) -> bool:
    """Whether all-to-alls of unknown size may explain most of the excess of the rank in `row`.

    More tokens make kernels longer; they do not keep the device waiting for its host.
    """
    most = MAJORITY * float(np.nan_to_num(case.found.mean[row]))
    if case.steps.mean(case.met.tokens.of_unknown_size[row]) <= most:
        return False
    computing = case.steps.means(case.computed)
    return float(computing[row] - np.nanmedian(computing[np.setdiff1d(case.stage_of(row), row)])) > most


def in_the_only_step(case: Case) -> Undecided | None:
    """The ranks that may cost the threshold in the only step that they recorded whole; None where there are none.

    One step cannot separate a slow rank from an accident.
    """
    longer = np.nan_to_num(case.found.mean, nan=0.0) > case.threshold_ns
    rows = np.flatnonzero(longer & (np.isfinite(case.found.value).sum(axis=1) == 1))
    of, whole = ("of it ", " whole") if len(case.steps.numbers) > 1 else ("", "")
    why = f"only one step {of}was recorded{whole}, and one step cannot separate a slow rank from chance"
    return left_undecided(case, rows, why, whole_steps(case))


def faint_ranks(case: Case) -> Undecided | None:
    """Return the ranks with an excess that most likely costs the threshold, but is not significant; None without any.

    Where steps vary so much that such an excess may be chance, they do not prove health either. One that chance gives
    in more than a minor part of jobs with so many ranks shows nothing.
    """
    least, z = case.threshold_ns, np.nan_to_num(case.found.z, nan=0.0)
    likely = np.array([confidence(v, len(z)) for v in z.tolist()]) > NEARLY_ALL
    unsure = likely & (z <= case.found.limit) & (np.nan_to_num(case.found.mean, nan=0.0) > least)
    longest = sorted(np.flatnonzero(unsure).tolist(), key=lambda row: -case.found.mean[row])[:PEERS_SAMPLED]
    rows = np.array([row for row in longest if likely_saved_ns(case, np.array([row])) >= least], np.int64)
    if len(case.steps.numbers) == 1 or not len(rows):
        return None
    why = varies(case, float(z[rows[0]]), case.found.limit)
    found = left_undecided(case, rows, why, f"{more_steps(case)} on every rank")
    return found and found.from_zero()


def varies(case: Case, z: float, limit: float) -> str:
    """Return the clause that steps vary too much to prove an excess of `z` standard errors."""
    return (
        f"steps vary so much that {len(case.steps.numbers)} do not prove it (z {z:.1f}, {limit:.1f} needed)"
    )


def left_undecided(case: Case, rows: I64, why: str = "", decide: str = "") -> Undecided | None:
    """Return `bounds_of` the rows; None where all together cost less than the threshold."""
    if not len(rows) or most_ns(case, rows) < case.threshold_ns:
        return None
    return bounds_of(case, rows, why, decide)


def bounds_of(case: Case, rows: I64, why: str = "", decide: str = "") -> Undecided:
    """`rows` with the bounds of what a step saves if one of them worked like its peers, largest excess first.

    The upper bound is the larger one of a cure of the rank alone, and of its cure after those of the others: ranks that
    are late together save nothing alone. `why` and `decide` say why the price is open and what would decide; if not
    given, those of communication that was not matched.
    """
    kept = rows[np.argsort(-case.found.mean[rows], kind="stable")]
    low = [least_ns(case, np.array([r])) for r in kept]
    alone = [most_ns(case, np.array([r])) for r in kept]
    together = most_ns(case, rows) if len(kept) > 1 else 0.0
    if together > max(alone):
        alone = [
            max(m, together - most_ns(case, np.setdiff1d(rows, r))) for m, r in zip(alone, kept, strict=True)
        ]
    high = [max(most, at_least) for most, at_least in zip(alone, low, strict=True)]
    if case.concealing is not None:  # a replay does not show all of it
        low = [max(least - rank_doubt_ns(case, rows), 0.0) for least in low]
        high = [may_cost_ns(most, float(case.found.mean[r])) for r, most in zip(kept, high, strict=True)]
    named = why or why_open(case), decide or what_would_decide(case)
    prices = tuple(Price.between(least, least, most) for least, most in zip(low, high, strict=True))
    return Undecided(tuple(int(r) for r in kept), prices, *named)


def why_open(case: Case) -> str:
    """The reason that a price is an interval: unmatched waits, unrecorded launches, or gaps in a table."""
    matched = case.coverage.matched
    if case.table is not None:
        return f"the model of the table's operations differs from the recorded steps by {ms(case.residual_ns):.1f} ms"
    if case.concealing is not None and matched == 1:
        return "no compute was recorded: the others may have worked beside the communication that waited"
    if matched is not None and matched >= COVERAGE_WHOLE:
        return "the traces do not show when queued operations could have started"
    share = "none" if matched is None else f"only {matched:.0%}"
    return f"{share} of the exposed communication could be matched between ranks"


def whole_steps(case: Case) -> str:
    """The advice on what to record where only one step was compared."""
    if case.table is not None:
        return "write three whole steps or more of every rank into the table"
    marks = ", and call the profiler's step() after each, so that the traces mark them"
    return "record three whole steps or more on every rank" + ("" if case.steps.labelled else marks)


def more_steps(case: Case) -> str:
    """The advice on how many steps to record: as many as prove a faint excess, or twice as many as there are."""
    recorded = len(case.steps.numbers)
    return f"record {PROVING_STEPS if recorded < PROVING_STEPS else 2 * recorded} steps or more"


REPEAT = (
    "record the same steps again with the same data in another order, or on another host: a slow device stays slow; "
    "or test the devices alone: tracekit next TRACES"
)


def what_would_decide(case: Case) -> str:
    """The sentence on what to record or to add, for the largest kind of operation that was not matched."""
    ops = case.ops
    open_ = case.analysed & ~case.matched
    message = ops.among(_PEERLESS)
    if case.concealing is not None and case.coverage.matched == 1:
        return _COMPUTE
    spent = {
        _ADD: float(ops.exposed[open_ & (ops.channel >= 0)].sum()) if case.missing else 0.0,
        _PEERS: float(ops.exposed[open_ & (ops.channel < 0) & message].sum()),
        NAME_GROUPS: float(ops.exposed[open_ & (ops.channel < 0) & ~message].sum()),
    }
    worst = max(spent, key=lambda k: spent[k])
    if spent[worst] <= 0:
        on_device = case.table is None and any(o.on_gpu for o in ops.per_rank.values())
        return _LAUNCHES if on_device and not np.isfinite(ops.at_ready).all() else _STEPS
    if case.table is not None and worst != _ADD:
        return _ROWS
    if worst == _PEERS and case.mesh.stages == 1:
        return f"{_STAGES}; or {_PEERS}"
    return fewest_traces(case, case.missing) if worst == _ADD else worst


_PEERLESS = (*MESSAGES, "send_recv")
_ADD = "add traces"
_PEERS = (
    "record sends and receives with their peers: torch 2.5 or newer, with ProfilerActivity.CPU and "
    "record_shapes=True"
)
_STAGES = "if these messages go between pipeline stages, give --mesh with pp"
NAME_GROUPS = (
    "start the profiler after the process groups exist, so that every operation names its members; "
    "or give --mesh"
)
_LAUNCHES = "record the host as well (ProfilerActivity.CPU): launches show when a queued collective could have started"
_COMPUTE = "record compute and the host as well: they show what ranks do while communication waits"
_STEPS = "record more steps"
_ROWS = "write all rows of each step: both ends of every message, and every member of a collective"
