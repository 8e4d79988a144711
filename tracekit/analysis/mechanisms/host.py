"""What a host does while its device waits for work: the spans in the gaps, or that there are none."""

import re
from collections import Counter
from typing import Final

import numpy as np
import pyarrow as pa

from tracekit.findings import Mechanism
from tracekit.intervals import Intervals, union
from tracekit.matching.match import Operations
from tracekit.rank_events.event_columns import Values, ints, matches, strings, truth
from tracekit.steps.features import COLLECTOR
from tracekit.steps.steps import Steps, idle_within, inside_each, windows_of
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
    QUOTA_CHANCE,
    QUOTA_PERIOD_NS,
    RETURN_NS,
)
from tracekit.units import F64, I64, Mask, ms

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

_LAUNCHES: Final = re.compile(r"^(cuda|hip)\w*Launch|^aten::")
_WAITS: Final = re.compile(
    r"^(cuda|hip)(Stream|Device|Event)Synchronize|^(cuda|hip)Memcpy$|::item\b|_local_scalar_dense|::nonzero\b"
)
_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
_STEP: Final = re.compile(r"^ProfilerStep")


def of_host(run: Run, ops: Operations, steps: Steps, rank: int) -> list[Mechanism]:
    """Return what the host of `rank` does in the long gaps of its device, with the share of them, the largest first.

    Empty where it has no long gap, or no event of the host was recorded. Raises InputError on an unreadable table.
    """
    row = steps.row(rank)
    columns = [c for c in range(len(steps.numbers)) if np.isfinite(steps.own[row, c])]
    each = windows_of(ops, steps, rank, columns)
    gaps = _longest(idle_within(ops, rank, union(*each)))
    events = run.events(rank, ["ts", "dur", "cat", "name", "tid"])
    host = ~np.isin(matches(events, "cat", lambda c: c), _DEVICE) & ~truth(events, "name", _STEP)
    if not len(gaps[0]) or not host.any():
        return []
    start = ints(events, "ts", 0)
    end = start + ints(events, "dur", 0)
    whole, left, found = _length(gaps), gaps, []
    names = np.array([name or "" for name in strings(events.column("name"))], object)
    for name, pattern in (*_SPANS, ("lock", _LOCK)):
        mine = host & truth(events, "name", pattern)
        if name == "lock":
            mine &= _of_launching_thread(events, host)
        left, part = _without(left, union(start[mine], end[mine]))
        text = f"{_WORDS[name]} fills {_share(part / whole)}"
        if name == "garbage_collection" and part:
            text += _frame(start, end, names, host, mine) + _when(run, ops, steps, rank, start[mine])
        found.append(Mechanism(name, part / whole, text))
    behind, call = _behind_waits(left, end, np.flatnonzero(host & truth(events, "name", _WAITS)), names)
    part = float((left[1] - left[0])[behind].sum())
    text = f"{call} waits for the device and returns at the begin of gaps that are {part / whole:.0%} of them"
    found.append(Mechanism("synchronisation", part / whole, text))
    left = left[0][~behind], left[1][~behind]
    name, spans = _one_span(left, (start[host], end[host]), names[host])
    left, part = _without(left, spans)
    found.append(Mechanism("host_span", part / whole, f"the span {name} fills {_share(part / whole)}"))
    quiet = _quiet(left, np.unique(np.concatenate([start[host], end[host]])))
    found.append(_pauses(left[0][quiet], each, float((left[1] - left[0])[quiet].sum()) / whole))
    return sorted((m for m in found if m.share > 0), key=lambda m: -m.share)


def _of_launching_thread(events: pa.Table, host: Mask) -> Mask:
    """Whether each event is of the thread that runs most operators and launches."""
    thread = ints(events, "tid", -1)
    launches = thread[host & truth(events, "name", _LAUNCHES)]
    known, count = np.unique(launches, return_counts=True)
    return np.asarray(thread == known[np.argmax(count)], bool) if len(known) else host


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
    columns = np.flatnonzero(np.isfinite(steps.own[steps.row(rank)])).tolist()
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


def _pauses(begins: I64, each: Intervals, share: float) -> Mechanism:
    """The pauses without any event: by a quota where they begin at one phase of its period, and anywhere in a step.

    Pauses at one place of steps that last a multiple of the period are at one phase as well; `each` are the steps.
    """
    many = f"{len(begins)} pauses without an event of any thread"
    own = len(np.unique(begins // QUOTA_PERIOD_NS)) == len(begins)
    at = np.searchsorted(each[0], begins, "right") - 1
    place = (begins - each[0][at]) / np.maximum(each[1] - each[0], 1)[at]
    phase = (begins % QUOTA_PERIOD_NS) / QUOTA_PERIOD_NS
    if own and _chance(phase) <= QUOTA_CHANCE < _chance(place):
        return Mechanism("cpu_quota", share, f"{many} begin at one phase of a period of 100 ms")
    return Mechanism("no_event", share, f"{many} fill {_share(share)}")


def _chance(phase: F64) -> float:
    """The probability that uniform phases (0 to 1) lie together as closely as these, by Rayleigh's test."""
    turned = 2 * np.pi * phase
    return float(np.exp(-(np.hypot(np.cos(turned).sum(), np.sin(turned).sum()) ** 2) / max(len(phase), 1)))


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
    return f"{share:.0%} of the time in which its device waits for work"


_WORDS: Final = {
    "garbage_collection": "garbage collection",
    "recompilation": "compilation",
    "input_output": "reading and writing",
    "lock": "waiting for a lock or a queue",
}
