"""Whether slowness recurs: an excess in one step only is an accident, not a slow rank or a long stage.

A profiler that starts on one rank, a checkpoint, or a pause of one host makes one step long. A fault shows in every
step, an intermittent one in some; `excess.throttled` finds a device that was slow throughout its one step.
"""

from dataclasses import dataclass, replace

import numpy as np

from tracekit.analysis.slowrank.gaps.evidence_gaps import most_ns
from tracekit.analysis.slowrank.hypotheses.suspect_work import (
    late_loaders,
    lone_work,
    shared_wait,
    stalled_often,
)
from tracekit.case.case import Case
from tracekit.case.cures import saved_ns, typical_without
from tracekit.case.wording import ranks_in_words
from tracekit.expected.excess import recurs, recurs_beside, slow_throughout
from tracekit.steps.step_kernels import longest_beyond
from tracekit.thresholds.slowrank import CLEARLY_MORE, MAJORITY, MINOR, NO_ACCIDENT, PROVING_STEPS, STEP_PARTS
from tracekit.units import I64, Mask, ms


@dataclass(frozen=True)
class OneStep:
    """A rank that was slow in one step only: its row of Steps, the step's column, its price in ns a step.

    Ranks that were slow together in that step share the price: a host of several ranks that compiles, for example.
    """

    row: int
    column: int
    excess: float  # beyond its peers, ns a step
    gain: float  # where windows cut the step, the most that it may cost
    others: tuple[int, ...] = ()  # rows that were slow with it

    @property
    def rows(self) -> tuple[int, ...]:
        """All its rows of Steps, the one with the largest excess first."""
        return self.row, *self.others


def in_one_step(case: Case) -> OneStep | None:
    """The rank that costs most by an excess in one step only; None where none reaches the threshold, or all recur."""
    if len(case.steps.numbers) < 2:
        return None
    best: OneStep | None = None
    recurring = recurs(case.found.value / case.steps.shares, case.step_ns)
    mean = np.nan_to_num(case.found.mean, nan=0.0)
    for row in np.flatnonzero(mean > case.suspect_ns).tolist():
        rows, column = np.array([row]), int(np.nanargmax(case.found.value[row]))
        part = 1.0 / float(case.steps.shares[column])  # a step that windows cut is shorter
        if row in case.found.throughout and part <= 1:
            continue
        if case.coverage.matched != 1 and recurring[row]:  # a replay cannot price its other steps
            continue
        gain = saved_ns(case, rows, typical_without(case, rows))
        if case.coverage.matched != 1:  # others may wait for it in unmatched operations
            gain = max(gain, most_ns(case, rows))
        most = part * float(mean[row]) if part > 1 else gain  # others wait for it behind the cut
        longer = part * mean[row] > case.threshold_ns
        if not longer or most < case.threshold_ns or costs_in_others(case, rows, gain):
            continue
        if best is None or most > best.gain:
            best = OneStep(row, column, float(mean[row]), most)
    columns = range(len(case.steps.numbers))
    several = [found for column in columns if (found := _together(case, column, recurring))]
    together = max(several, key=lambda found: found.gain, default=None)
    if together is not None and (best is None or together.gain > CLEARLY_MORE * best.gain):
        return together
    return best


def _together(case: Case, column: int, recurring: Mask) -> OneStep | None:
    """The ranks that were slow together in the step of `column` only, if that costs the threshold; else None.

    The cure of one of them saves nothing while the others are late.
    """
    value, mean = case.found.value, np.nan_to_num(case.found.mean, nan=0.0)
    slow = (mean > case.suspect_ns) & ~recurring
    rows = np.array([row for row in np.flatnonzero(slow) if np.nanargmax(value[row]) == column], np.int64)
    if len(rows) < 2 or case.steps.shares[column] < 1 or case.found.throughout & set(rows.tolist()):
        return None
    gain = saved_ns(case, rows, typical_without(case, rows))
    if gain < case.threshold_ns or costs_in_others(case, rows, gain):
        return None
    first, *others = sorted(rows.tolist(), key=lambda row: (-mean[row], row))
    return OneStep(first, column, float(mean[first]), gain, tuple(others))


def costs_in_others(case: Case, rows: I64, gain: float) -> bool:
    """Whether slowness of `rows` that costs `gain` (ns a step) still costs something without their longest step.

    The rest must reach the threshold by itself, or the share MINOR of `gain`; true where only one step was recorded.
    Beside whole steps, later waits of the others are not recorded: there the excess itself must recur.
    """
    many = len(case.steps.numbers)
    if many < 2:
        return True
    cured = typical_without(case, rows)
    longest = int(np.argmax(np.nan_to_num(case.found.value[rows]).sum(axis=0)))
    if any(recurs_beside(case, case.found, row, rows.tolist()) for row in rows.tolist()):
        return True
    cured[rows, longest] = case.steps.own[rows, longest]
    rest = saved_ns(case, rows, cured)
    return rest > MINOR * gain or rest * many / (many - 1) > case.threshold_ns


def others_prove_health(case: Case, found: OneStep) -> bool:
    """Whether enough other steps were recorded in which the ranks were as fast as their peers.

    A profiler that starts makes the first step long, but not its kernels. Many fast steps are needed where a device was
    slow throughout the step, a process paused in it, or a data loader stalled, which recurs whenever its queue is
    empty. A process that paused may have paused in a transfer of another step. An excess as long as several steps, such
    as that of a compiler, is never called an accident. Work that the program does in that step and on these ranks alone
    needs no other proof.
    """
    if all(lone_work(case, row, found.column, found.rows) for row in found.rows):
        return True
    return all(_was_an_accident(case, replace(found, row=row, others=())) for row in found.rows)


def _was_an_accident(case: Case, found: OneStep) -> bool:
    """Whether enough other steps prove that of one rank, by what its device and its host did in the long one."""
    known = np.flatnonzero(np.isfinite(case.found.value[found.row]))
    few = len(known) < PROVING_STEPS
    if few and (slow_throughout(case, case.found, found.row) or late_loaders(case, (found.row,))):
        return False
    longer = float(case.found.value[found.row, found.column])
    computes = case.on_gpu(found.row) and case.met.peers.beyond(case.computed)[found.row, found.column]
    started = (
        found.column == known[0] and not computes >= MAJORITY * longer and _begins_late(case, found, longer)
    )
    if _held_up_elsewhere(case, found, longer):
        return False
    if few and not started and _no_accident_in_one(case, found, longer):
        return False
    if not started and longer > CLEARLY_MORE * np.nanmedian(case.steps.wall):
        return False
    return len(known) - 1 >= NO_ACCIDENT - int(started)


def _begins_late(case: Case, found: OneStep, longer: float) -> bool:
    """Whether most of `longer`, ns, passes in the first of STEP_PARTS parts of the rank's step."""

    def before(row: int) -> float:
        mine = case.ops.of(case.steps.ranks[row])
        there = np.flatnonzero(
            case.analysed[mine] & (case.ops.step[mine] == case.steps.numbers[found.column])
        )
        first = there[len(there) // STEP_PARTS :][:1]
        return float(case.ops.at_start[mine][first].sum() - case.steps.begin[row, found.column])

    usual = np.nanmedian([before(row) for row in case.beside(found.row, found.rows)] or [np.nan])
    return not before(found.row) - usual < MAJORITY * longer


def _held_up_elsewhere(case: Case, found: OneStep, longer: float) -> bool:
    """Whether a transfer by threads of the rank's host lasted longer than usual in another step, by most of `longer`.

    ns; the process may have stopped there as well. Its peers could not leave before it sent its part, so that the stop
    is part of no own time.
    """
    ops, rank = case.ops, case.steps.ranks[found.row]
    mine = np.arange(len(ops.start))[ops.of(rank)]
    mine = mine[case.analysed[mine] & (ops.instance[mine] >= 0)]
    spent, message = case.waits.transfer[ops.instance[mine]], ops.messages[1][mine]
    away = ops.step[mine] != case.steps.numbers[found.column]
    long = np.flatnonzero(away & (spent >= MAJORITY * longer))
    return not ops.per_rank[rank].on_gpu and any(
        spent[i] - np.median(spent[message == message[i]]) >= MAJORITY * longer for i in long.tolist()
    )


def _no_accident_in_one(case: Case, found: OneStep, longer: float) -> bool:
    """Whether more than one lengthened kernel makes the step `longer` (ns): the process paused, or many were slow.

    True where the excess without the most lengthened kernel still reaches the threshold. Threads of a CPU may be
    delayed within any operation; there a host must stall several times.
    """
    if not case.on_gpu(found.row):
        return stalled_often(case, found.row, longer)
    steps = int(np.isfinite(case.found.value[found.row]).sum())
    kernels = case.kernels(found.row)
    return longer - longest_beyond(kernels, found.column) >= case.threshold_ns * steps


def step_in_words(case: Case, found: OneStep) -> str:
    """The sentence about the one slow step; times in ms."""
    number = case.steps.numbers[found.column]
    longer = ms(float(case.found.value[found.row, found.column]))
    place = found.row, found.column, found.rows
    work = lone_work(case, *place) or shared_wait(case, *place)
    added = f", in {work}" if work else ""
    works, its = ("work", "their") if found.others else ("works", "its")
    ranks = ranks_in_words(sorted(case.ranks_of(found.rows)))
    return f"{ranks} {works} {longer:.1f} ms longer than {its} peers in step {number} only{added}"
