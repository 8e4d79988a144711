"""Whether slowness recurs: an excess in one step only is an accident, not a slow rank or a long stage.

A profiler that starts on one rank, a checkpoint, or a pause of one host makes one step long. A fault shows in every
step, an intermittent one in some; `excess.throttled` finds a device that was slow throughout its one step.
"""

import re
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.expected.excess import recurs, slow_throughout
from tracekit.analysis.slowrank.gaps.evidence_gaps import coverage, most_ns
from tracekit.analysis.slowrank.hypotheses.candidates import saved_ns, typical_without
from tracekit.analysis.slowrank.hypotheses.suspect_work import late_loaders, stalled_often
from tracekit.analysis.slowrank.wording import ranks_in_words
from tracekit.intervals import Intervals, union
from tracekit.rank_events.event_columns import Values, ints, matches
from tracekit.step_graph.statistics import median_of_others
from tracekit.steps.features import COLLECTOR, LOADER
from tracekit.steps.medians import median_by_column, sampled
from tracekit.steps.step_kernels import StepKernels, kernels_in_steps, longest_beyond
from tracekit.steps.steps import idle_within, inside_each, windows_of
from tracekit.thresholds.slowrank import (
    CANDIDATE_SHARE,
    CLEARLY_MORE,
    MAJORITY,
    MIN_LOST_SHARE,
    MINOR,
    NEARLY_ALL,
    NO_ACCIDENT,
    OTHER_STEPS_OF_DEVICE,
)
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
    recurring = recurs(case.found.value, case.step_ns)
    mean = np.nan_to_num(case.found.mean, nan=0.0)
    for row in np.flatnonzero(mean > CANDIDATE_SHARE * case.step_ns).tolist():
        rows, column = np.array([row]), int(np.nanargmax(case.found.value[row]))
        part = _unrecorded(case, column)
        if row in case.found.throughout and part <= 1:
            continue
        if coverage(case).matched != 1 and recurring[row]:  # a replay cannot price its other steps
            continue
        gain = saved_ns(case, rows, typical_without(case, rows))
        if coverage(case).matched != 1:  # others may wait for it in unmatched operations
            gain = max(gain, most_ns(case, rows))
        most = part * float(mean[row]) if part > 1 else gain  # others wait for it behind the cut
        longer = part * mean[row] > MIN_LOST_SHARE * case.step_ns
        if not longer or most < MIN_LOST_SHARE * case.step_ns or costs_in_others(case, rows, gain):
            continue
        if best is None or most > best.gain:
            best = OneStep(row, column, float(mean[row]), most)
    together = max(
        (found for column in range(len(case.steps.numbers)) if (found := _together(case, column, recurring))),
        key=lambda found: found.gain,
        default=None,
    )
    if together is not None and (best is None or together.gain > CLEARLY_MORE * best.gain):
        return together
    return best


def _together(case: Case, column: int, recurring: Mask) -> OneStep | None:
    """The ranks that were slow together in the step of `column` only, if that costs the threshold; else None.

    The cure of one of them saves nothing while the others are late.
    """
    value, mean = case.found.value, np.nan_to_num(case.found.mean, nan=0.0)
    slow = (mean > CANDIDATE_SHARE * case.step_ns) & ~recurring
    rows = np.array([row for row in np.flatnonzero(slow) if np.nanargmax(value[row]) == column], np.int64)
    if len(rows) < 2 or _unrecorded(case, column) > 1 or case.found.throughout & set(rows.tolist()):
        return None
    gain = saved_ns(case, rows, typical_without(case, rows))
    if gain < MIN_LOST_SHARE * case.step_ns or costs_in_others(case, rows, gain):
        return None
    first, *others = sorted(rows.tolist(), key=lambda row: (-mean[row], row))
    return OneStep(first, column, float(mean[first]), gain, tuple(others))


def _unrecorded(case: Case, column: int) -> float:
    """The ratio of a usual step to the step in `column`, at least 1: a step that windows cut is shorter."""
    wall = np.nanmedian(case.steps.wall, axis=0)
    return max(float(np.median(wall) / wall[column]), 1.0) if wall[column] > 0 else 1.0


def costs_in_others(case: Case, rows: I64, gain: float) -> bool:
    """Whether slowness of `rows` that costs `gain` (ns a step) still costs something without their longest step.

    The rest must reach the threshold by itself, or the share MINOR of `gain`; true where only one step was recorded.
    In a step that windows cut, later waits of the others are not recorded: there the excess itself must recur.
    """
    many = len(case.steps.numbers)
    if many < 2:
        return True
    cured = typical_without(case, rows)
    longest = int(np.argmax(np.nan_to_num(case.found.value[rows]).sum(axis=0)))
    if _recurs_in_cut(case, rows, longest):
        return True
    cured[rows, longest] = case.steps.own[rows, longest]
    rest = saved_ns(case, rows, cured)
    return rest > MINOR * gain or rest * many / (many - 1) > MIN_LOST_SHARE * case.step_ns


def _recurs_in_cut(case: Case, rows: I64, longest: int) -> bool:
    """Whether `rows` exceed their peers in a cut step as well, by most of the share of work as in their longest one."""
    if case.cut not in case.steps.numbers or case.steps.numbers[longest] == case.cut:
        return False
    share = np.nan_to_num(case.found.value[rows]).sum(axis=0) / median_by_column(case.steps.own)
    return bool(share[case.steps.numbers.index(case.cut)] >= MAJORITY * share[longest] > 0)


def others_prove_health(case: Case, found: OneStep) -> bool:
    """Whether enough other steps were recorded in which the ranks were as fast as their peers.

    A profiler that starts makes the first step long, but not its kernels. Many fast steps are needed where a device was
    slow throughout the step, a process paused in it, or a data loader stalled, which recurs whenever its queue is
    empty. An excess as long as several steps, such as that of a compiler, is never called an accident. Work that the
    program does in that step alone needs no other proof.
    """
    if found.others:
        return all(others_prove_health(case, replace(found, row=row, others=())) for row in found.rows)
    known = np.flatnonzero(np.isfinite(case.found.value[found.row]))
    if len(known) > 1 and lone_work(case, found.row, found.column):
        return True
    few = len(known) - 1 < OTHER_STEPS_OF_DEVICE
    if few and (slow_throughout(case, case.found, found.row) or late_loaders(case, (found.row,))):
        return False
    started = found.column == known[0] and not _computes_longer(case, found)
    longer = float(case.found.value[found.row, found.column])
    if few and not started and _no_accident_in_one(case, found, longer):
        return False
    if not started and longer > CLEARLY_MORE * np.nanmedian(case.steps.wall):
        return False
    return len(known) - 1 >= NO_ACCIDENT - int(started)


def _no_accident_in_one(case: Case, found: OneStep, longer: float) -> bool:
    """Whether more than one lengthened kernel makes the step `longer` (ns): the process paused, or many were slow.

    True where the excess without the most lengthened kernel still reaches the threshold. Threads of a CPU may be
    delayed within any operation; there a host must stall several times.
    """
    if not case.ops.per_rank[case.steps.ranks[found.row]].on_gpu:
        return stalled_often(case, found.row, longer)
    steps = int(np.isfinite(case.found.value[found.row]).sum())
    kernels = kernels_in_steps(case.run, case.ops, case.steps, found.row)
    return longer - longest_beyond(kernels, found.column) >= MIN_LOST_SHARE * case.step_ns * steps


def _computes_longer(case: Case, found: OneStep) -> bool:
    """Whether most of the excess of the one step is compute; false for a CPU's trace, which does not show that."""
    if not case.ops.per_rank[case.steps.ranks[found.row]].on_gpu:
        return False
    computed = case.computed
    over = (computed - median_of_others(computed, case.stages))[found.row, found.column]
    return bool(over >= MAJORITY * case.found.value[found.row, found.column])


def told(case: Case, found: OneStep) -> str:
    """The sentence about the one slow step; times in ms."""
    number = case.steps.numbers[found.column]
    longer = ms(float(case.found.value[found.row, found.column]))
    work = lone_work(case, found.row, found.column)
    added = f", in {work}" if work else ""
    works, its = ("work", "their") if found.others else ("works", "its")
    ranks = ranks_in_words(sorted(case.steps.ranks[row] for row in found.rows))
    return f"{ranks} {works} {longer:.1f} ms longer than {its} peers in step {number} only{added}"


# Work that one rank does in one step: a checkpoint, an evaluation, a report. Its trace names it: a span of the program
# or kernels that neither the rank's other steps nor its peers have. No accident and no fault explains the step better.


_DIGITS: Final = re.compile(r"\d+")


def lone_work(case: Case, row: int, column: int) -> str:
    """Return what work explains the excess of the rank in `row` in one step, as words after "in"; "" where none does.

    row, column: of Steps. A span counts while the device is idle. Raises InputError where events cannot be read.
    """
    longer = float(case.found.value[row, column])
    peers = sampled([int(r) for r in case.stage_of(row) if r != row])
    if case.table is not None or not longer > 0 or not peers:
        return ""
    own = _lone_spans(case, row, column, peers)
    name = max(own, key=lambda n: (own[n], n), default="")
    if name and own[name] >= NEARLY_ALL * longer:
        return f"{name}, which its other steps and its peers lack"
    kernels = _added(case, row, column, peers)
    if sum(kernels.values()) < NEARLY_ALL * longer:
        return ""
    name = max(kernels, key=lambda n: (kernels[n], n))
    return f"more kernels than in its other steps and than its peers (most are {name})"


def _lone_spans(case: Case, row: int, column: int, peers: list[int]) -> dict[str, float]:
    """The time that annotations of the program fill in a step while the device of the rank is idle, by name, ns.

    Left out are names that occur outside the step or in the recording of a peer, and waits that recur by chance: those
    of a data loader or of the garbage collector. Numbers in a name count as equal, as programs number their steps. A
    host may run ahead of its device, so that spans of other steps lie in no window of the device.
    """
    rank = case.steps.ranks[row]
    start, end, names = _annotations(case, rank)
    (begin,), (stop,) = windows_of(case.ops, case.steps, rank, [column])
    inside = (start < stop) & (end > begin)
    usual = set(names[~inside].tolist())
    usual |= {name for peer in peers for name in _annotations(case, case.steps.ranks[peer])[2].tolist()}
    lone = {n for n in names[inside].tolist() if not (n in usual or COLLECTOR.search(n) or LOADER.search(n))}
    idle = idle_within(case.ops, rank, (np.array([begin]), np.array([stop])))
    spans = {name: inside & (names == name) for name in sorted(lone)}
    return {name: _within(union(start[mine], end[mine]), idle) for name, mine in spans.items()}


def _annotations(case: Case, rank: int) -> tuple[I64, I64, Values]:
    """Begin, end and name, without its numbers, of each annotation of the program; ns."""
    events = case.run.events(rank, ["ts", "dur", "cat", "name"])
    chosen = matches(events, "cat", lambda cat: cat == "user_annotation").astype(bool)
    start = ints(events, "ts", 0)[chosen]
    names = matches(events, "name", lambda name: _DIGITS.sub("#", name or ""))[chosen]
    return start, start + ints(events, "dur", 0)[chosen], names


def _within(spans: Intervals, idle: Intervals) -> float:
    return float(sum(inside_each(spans, idle)))


def _added(case: Case, row: int, column: int, peers: list[int]) -> dict[str, float]:
    """The time of the kernels that the rank runs more often in the step than in its others and than its peers, ns.

    Nothing for fewer than NO_ACCIDENT of them.
    """
    if not case.ops.per_rank[case.steps.ranks[row]].on_gpu:
        return {}
    mine = kernels_in_steps(case.run, case.ops, case.steps, row)
    others = [_by_name(mine, int(c)) for c in np.unique(mine.column) if c != column]
    others += [_by_name(kernels_in_steps(case.run, case.ops, case.steps, peer), column) for peer in peers]
    added, pieces = {}, 0
    for name, (count, took) in _by_name(mine, column).items():
        usual = [other.get(name, (0, 0.0)) for other in others]
        if usual and count > max(many for many, _ in usual):
            added[name] = took - max(ns for _, ns in usual)
            pieces += count - max(many for many, _ in usual)
    return added if pieces >= NO_ACCIDENT else {}


def _by_name(kernels: StepKernels, column: int) -> dict[str, tuple[int, float]]:
    """The number of kernels of each name in a step, and their time, ns."""
    here = kernels.column == column
    names, code = np.unique(kernels.name[here].astype(str), return_inverse=True)
    took = np.bincount(code, kernels.lasted[here], len(names))
    return dict(zip(names.tolist(), zip(np.bincount(code).tolist(), took.tolist(), strict=True), strict=True))
