"""What a host does while its device waits for work: the spans in the gaps, or that there are none."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from tracekit.analysis.mechanisms.calls import WAITS, Calls, launching_threads
from tracekit.analysis.mechanisms.pauses import of_pauses, quota
from tracekit.findings import Mechanism
from tracekit.intervals import Intervals, inside_each, subtract, union
from tracekit.matching.match import Operations
from tracekit.rank_events.event_columns import Values, categories, ints, strings, truth
from tracekit.steps.features import COLLECTOR
from tracekit.steps.steps import Steps, idle_within, windows_of
from tracekit.store import Run
from tracekit.thresholds.slowrank import (
    GAP_NS,
    GAP_PART,
    GAPS_READ,
    INSIDE,
    KIND_RATIO,
    NAMED_SHARE,
    NO_ACCIDENT,
    PEERS_SAMPLED,
    RETURN_NS,
)
from tracekit.units import I64, Mask, ms

_SPANS: Final = (
    ("garbage_collection", COLLECTOR),
    (
        "recompilation",
        re.compile(
            r"dynamo|inductor|\bcompile|_compile\b|CompiledFx|triton.*(build|autotune)", re.IGNORECASE
        ),
    ),
    (
        "input_output",
        re.compile(
            r"checkpoint|\bsave|torch\.save|fsync|wandb|tensorboard|\blog(ger|ging)?\b", re.IGNORECASE
        ),
    ),
)
_LOCK: Final = re.compile(
    r"\bacquire\b|_thread\.R?Lock|threading\.py\(\d+\): (wait|join)|queue\.py\(\d+\): (get|put)|\b(gil|lock)\b",
    re.IGNORECASE,
)
"""Spans in which a thread waits for another one, as Python's stacks (`with_stack=True`) and programs name them."""

_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
_STEP: Final = re.compile(r"^ProfilerStep")


@dataclass(frozen=True)
class _Host:
    """The events of one host, ns, with the steps of its rank; `host` leaves out those of devices and step marks."""

    start: I64
    end: I64
    name: Values
    thread: I64
    host: Mask
    each: Intervals
    calls: list[Calls]  # of the threads that launch, the busiest first

    def named(self, pattern: re.Pattern[str]) -> Mask:
        """Return which events of the host have a name of this kind."""
        fits = {name: bool(pattern.search(name)) for name in set(self.name[self.host].tolist())}
        return np.asarray(self.host & np.array([fits.get(name, False) for name in self.name], bool), bool)


def of_host(run: Run, ops: Operations, steps: Steps, rank: int) -> list[Mechanism]:
    """Return what the host of `rank` does in the long gaps of its device, with the share of them, the largest first.

    Where the device is a CPU, the time by which operators take longer than in other steps counts as well. Empty where
    it has no long gap, or no event of the host was recorded. Raises InputError on an unreadable table.
    """
    on_gpu, of = ops.per_rank[rank].on_gpu, _read(run, ops, steps, rank)
    gaps = _pauses(of, ops, rank)
    if not len(gaps[0]) or not of.host.any():
        return []
    whole, (left, found) = _length(gaps), _in_spans(of, gaps, partial(_when, run, ops, steps, rank))
    waits = of.named(WAITS)
    turns = np.unique(np.concatenate([of.start[of.host], of.end[of.host]]))
    if on_gpu:
        behind, call = _behind_waits(left, of.end, np.flatnonzero(waits), of.name)
        behind &= ~_quiet(left, turns)  # there it does not launch again, but something else
        part = float((left[1] - left[0])[behind].sum())
        text = f"{call} waits for the device and returns at the begin of gaps that are {part / whole:.0%} of them"
        found.append(Mechanism("synchronisation", part / whole, text))
        left = left[0][~behind], left[1][~behind]
    lone = of.host & ~_holds_operators(of)
    name, spans = _one_span(left, (of.start[lone], of.end[lone]), of.name[lone])
    left, part = _without(left, spans)
    found.append(Mechanism("host_span", part / whole, f"the span {name} fills {_share(part / whole)}"))
    quiet = _quiet(left, turns)
    waited = union(of.start[waits], of.end[waits]) if on_gpu else ops.progress[rank].exposed
    active = _length(of.each) - sum(inside_each(waited, of.each))
    found += of_pauses((left[0][quiet], left[1][quiet]), of.calls, of.each, active, whole)
    return sorted((m for m in found if m.share > 0), key=lambda m: -m.share)


def under_quota(run: Run, ops: Operations, steps: Steps, rank: int) -> bool:
    """Return whether the long pauses of a rank's host end as those of a quota of processor time do.

    Raises InputError on an unreadable table.
    """
    of = _read(run, ops, steps, rank)
    return bool(quota(_pauses(of, ops, rank), of.each))


def _pauses(of: _Host, ops: Operations, rank: int) -> Intervals:
    """The long gaps of the device of a rank; on a CPU with the time by which its operators take longer."""
    gaps = idle_within(ops, rank, union(*of.each))
    if not ops.per_rank[rank].on_gpu:
        gaps = union(*np.concatenate([gaps, *(calls.stalled(of.each) for calls in of.calls)], axis=1))
        gaps = subtract(gaps, ops.progress[rank].exposed)
    return _longest(gaps)


def _read(run: Run, ops: Operations, steps: Steps, rank: int) -> _Host:
    """The events of the host of a rank."""
    columns = steps.recorded(rank)
    events = run.events(rank, ["ts", "dur", "cat", "name", "tid"])
    host = ~categories(events).among(_DEVICE) & ~truth(events, "name", _STEP)
    start = ints(events, "ts", 0)
    names = np.array([name or "" for name in strings(events.column("name"))], object)
    columns_of = start, start + ints(events, "dur", 0), names, ints(events, "tid", -1)
    each = windows_of(ops, steps, rank, columns)
    return _Host(*columns_of, host, each, launching_threads(*columns_of, host))


def _in_spans(of: _Host, gaps: Intervals, when: Callable[[I64], str]) -> tuple[Intervals, list[Mechanism]]:
    """(the gaps that no span with a meaning fills, what fills the others); `when` describes when collections begin."""
    whole, left, found = _length(gaps), gaps, []
    for name, pattern in (*_SPANS, ("lock", _LOCK)):
        mine = of.named(pattern)
        if name == "lock" and of.calls:
            mine &= of.thread == of.calls[0].thread
        left, part = _without(left, union(of.start[mine], of.end[mine]))
        text = f"{_WORDS[name]} fills {_share(part / whole)}"
        if name == "garbage_collection" and part:
            text += _frame(of.start, of.end, of.name, of.host, mine) + when(of.start[mine])
        found.append(Mechanism(name, part / whole, text))
    return left, found


def _holds_operators(of: _Host) -> Mask:
    """Whether each event of a host holds operators of a thread that launches: a frame around work, not a pause."""
    found = np.zeros(len(of.start), bool)
    for calls in of.calls:
        begins = calls.start[calls.native]
        found |= np.searchsorted(begins, of.end) > np.searchsorted(begins, of.start, "right")
    return found


def _frame(start: I64, end: I64, names: Values, host: Mask, mine: Mask) -> str:
    """The words on the span around most collections: the shortest one of the host around each."""
    around: Counter[str] = Counter()
    others = np.flatnonzero(host & ~mine)
    for row in np.flatnonzero(mine)[:GAPS_READ].tolist():
        outer = others[(start[others] <= start[row]) & (end[others] >= end[row])]
        if len(outer):
            around[names[outer[np.argmin(end[outer] - start[outer])]]] += 1
    return f", within {max(around, key=lambda name: (around[name], name))}" if around else ""


def _when(run: Run, ops: Operations, steps: Steps, rank: int, begins: I64) -> str:
    """The words on how often a rank collects garbage, and whether its peers do in the same steps."""
    mine = _steps_with(ops, steps, rank, begins)
    apart = np.diff(np.sort(begins))
    often = f"; in {len(mine)} of {len(steps.numbers)} steps"
    if len(begins) >= NO_ACCIDENT and apart.max() <= KIND_RATIO * apart.min():
        often += f", every {ms(float(np.median(apart))):.0f} ms"
    theirs: set[int] = set()
    for peer in [r for r in steps.ranks if r != rank][:PEERS_SAMPLED]:
        events = run.events(peer, ["ts", "name"])
        theirs |= _steps_with(ops, steps, peer, ints(events, "ts", 0)[truth(events, "name", COLLECTOR)])
    if not theirs:
        return f"{often}; its peers collect in none"
    same = "the same steps" if mine <= theirs else "some of them" if mine & theirs else "other steps"
    return f"{often}; its peers collect in {same}"


def _steps_with(ops: Operations, steps: Steps, rank: int, begins: I64) -> set[int]:
    """The columns of steps of a rank in which something begins at `begins`."""
    columns = steps.recorded(rank)
    each = windows_of(ops, steps, rank, columns) if len(begins) else (begins, begins)
    return {
        c for c, begin, end in zip(columns, *each, strict=False) if ((begins >= begin) & (begins < end)).any()
    }


def _behind_waits(gaps: Intervals, end: I64, waits: I64, names: Values) -> tuple[Mask, str]:
    """(whether each gap begins where a call that waits for the device returns, the name of most of these calls).

    `waits` are the rows of such calls. An operator's name says more than that of the runtime call inside it.
    """
    waits = waits[np.argsort(end[waits], kind="stable")]
    first = np.searchsorted(end[waits], gaps[0] - RETURN_NS)
    after = np.searchsorted(end[waits], gaps[0] + RETURN_NS, "right")
    near = np.concatenate([waits[:0], *(waits[a:b] for a, b in zip(first, after, strict=True))])
    called = Counter(names[near].tolist())
    return after > first, max(called, key=lambda name: ("::" in name, called[name], name), default="")


def _longest(idle: Intervals) -> Intervals:
    """The longest gaps, in order of time: launches make many short ones on every rank."""
    lasted = idle[1] - idle[0]
    rows = np.sort(np.argsort(-lasted, kind="stable")[:GAPS_READ])
    rows = rows[lasted[rows] >= max(GAP_NS, GAP_PART * int(lasted.max(initial=0)))]
    return idle[0][rows], idle[1][rows]


def _length(gaps: Intervals) -> float:
    return float((gaps[1] - gaps[0]).sum())


def _without(gaps: Intervals, spans: Intervals) -> tuple[Intervals, float]:
    """(the gaps that `spans` cover by less than half, how long they cover the others, ns)."""
    covered = np.array(inside_each(spans, gaps))
    mine = 2 * covered >= gaps[1] - gaps[0]
    return (gaps[0][~mine], gaps[1][~mine]), float(covered[mine].sum())


def _quiet(gaps: Intervals, turns: I64) -> Mask:
    """Whether most of each gap passes without a begin or an end of anything; `turns` are their times, ascending."""
    longest = np.zeros(len(gaps[0]), np.int64)
    for place, (begin, end) in enumerate(zip(*gaps, strict=True)):
        within = turns[np.searchsorted(turns, begin, "right") : np.searchsorted(turns, end)]
        longest[place] = np.diff(np.concatenate([[begin], within, [end]])).max()
    return np.asarray(longest >= NAMED_SHARE * (gaps[1] - gaps[0]), bool)


def _one_span(gaps: Intervals, spans: Intervals, names: Values) -> tuple[str, Intervals]:
    """The name of the spans that cover most of the `gaps`, with these spans, if most of that name lie in gaps; else "".

    A span that is short elsewhere does not explain a gap: the process may have paused within it.
    """
    inside = np.array(inside_each(gaps, spans))
    close = np.flatnonzero(inside >= INSIDE * np.maximum(spans[1] - spans[0], 1))
    often = Counter(names.tolist())
    best: tuple[float, str, Intervals] = (0.0, "", (spans[0][:0], spans[1][:0]))
    for name in sorted(set(names[close].tolist())):
        rows = close[names[close] == name]
        if 2 * len(rows) >= often[name]:
            covers = union(spans[0][rows], spans[1][rows])
            best = max(best, (sum(inside_each(covers, gaps)), name, covers), key=lambda b: b[:2])
    return best[1], best[2]


def _share(share: float) -> str:
    return f"{share:.0%} of its pauses"


_WORDS: Final = {
    "garbage_collection": "garbage collection",
    "recompilation": "compilation",
    "input_output": "reading and writing",
    "lock": "waiting for a lock or a queue",
}
