"""Steps of a recording without marks: the operations of a training job repeat, and one repetition is a step.

Each rank begins its steps where the host waits longest for the device before it goes on, as it does when it reads the
loss. The operations that ranks share must agree about this, and tell which steps are one.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracekit.store import Group
from tracekit.tables.intervals import I64
from tracekit.tables.match import Operations, match
from tracekit.tables.operations import RankOps
from tracekit.tables.step_marks import I32, NO_STEP
from tracekit.thresholds.tables import RAGGED_RIMS, REPEATING_SHARE, WHOLE_REPEATS


def with_repeating_steps(ranks: list[RankOps], groups: Sequence[Group]) -> list[RankOps] | None:
    """`ranks` with a step for each repetition of their operations.

    None where marks exist, where nothing repeats on some rank, or where shared operations show no common steps.
    """
    if any((r.step != NO_STEP).any() for r in ranks):
        return None
    own = {r.rank: steps for r in ranks if (steps := repetitions(r)) is not None}
    if len(own) < len(ranks) or not own:
        return None
    ops = match(ranks, groups)
    ahead = _ahead(ops, np.concatenate([own[rank] for rank in ops.ranks]))
    if ahead is None:
        return None
    first = max(
        int(own[r][own[r] != NO_STEP].min()) + ahead[r] + _from_the_start(own[r], ops.per_rank[r])
        for r in own
    )
    labels = {r: np.where(own[r] != NO_STEP, own[r] + ahead[r] - first, NO_STEP) for r in own}
    return [replace(r, step=np.maximum(labels[r.rank], NO_STEP).astype(np.int32)) for r in ranks]


def _from_the_start(steps: I32, rank: RankOps) -> bool:
    """Whether the first operation of a recording is the first of a step: what went before it may not be recorded."""
    return bool(steps[np.argmin(rank.issued)] != NO_STEP)


def repetitions(rank: RankOps) -> I32 | None:
    """The number of each operation's repetition, NO_STEP at the rims of the recording; None if nothing repeats."""
    order = np.argsort(rank.issued, kind="stable")
    stream = rank.group if rank.stream is None else np.where(rank.stream < 0, rank.group, rank.stream)
    known: dict[tuple[str, int], int] = {}
    kinds = [known.setdefault((rank.op[i], int(stream[i])), len(known)) for i in order.tolist()]
    for rim in RAGGED_RIMS:
        kept = len(kinds) - int(rim * len(kinds))
        length, covered = period(kinds[:kept])
        if length:
            break
    else:
        return None
    inside = order[kept - covered : kept]
    done = np.maximum.accumulate(rank.end[inside])
    pause = rank.issued[inside][length:] - done[length - 1 : -1]
    usual = [float(np.median(pause[place::length])) for place in range(length)]
    begin = int(np.argmax(usual))
    whole = (covered - begin) // length
    steps = np.full(len(order), NO_STEP, np.int32)
    steps[inside[begin : begin + whole * length]] = np.repeat(np.arange(whole, dtype=np.int32), length)
    return steps


def period(kinds: Sequence[int]) -> tuple[int, int]:
    """(length of the repetition, how many of the last `kinds` repeat with it); (0, 0) where too few do.

    What comes before the repetition, as the first step of a program often does, may differ. Knuth, Morris and Pratt's
    failure function of the reversed sequence gives the shortest period of every suffix.
    """
    backward = list(reversed(kinds))
    border = [0] * len(backward)
    best = (0, 0)
    for i in range(1, len(backward)):
        k = border[i - 1]
        while k and backward[i] != backward[k]:
            k = border[k - 1]
        border[i] = k + (backward[i] == backward[k])
        if i + 1 >= WHOLE_REPEATS * (i + 1 - border[i]):
            best = (i + 1 - border[i], i + 1)
    return best if best[1] >= REPEATING_SHARE * len(backward) else (0, 0)


def _ahead(ops: Operations, steps: I32) -> dict[int, int] | None:
    """Rank → what to add to its step numbers, so that shared operations have one; None where they do not agree."""
    first = ops.ranks[0]
    ahead, left = {first: 0}, set(ops.ranks[1:])
    numbers = np.full(
        int(ops.instance.max(initial=-1)) + 2, NO_STEP, np.int64
    )  # the last stands for no instance

    def tell(rank: int) -> None:
        where = ops.of(rank)
        inside = (ops.instance[where] >= 0) & (steps[where] != NO_STEP)
        numbers[ops.instance[where][inside]] = steps[where][inside] + ahead[rank]

    tell(first)
    while left:
        apart = {r: _apart(numbers[ops.instance[ops.of(r)]], steps[ops.of(r)]) for r in sorted(left)}
        best = max(apart, key=lambda r: len(apart[r]))
        if not len(apart[best]):
            return _as_recorded(ops, steps, ahead)
        by, often = np.unique(apart[best], return_counts=True)
        if often.max() < REPEATING_SHARE * often.sum():
            return None
        ahead[best] = int(by[np.argmax(often)])
        tell(best)
        left.remove(best)
    return ahead


def _as_recorded(ops: Operations, steps: I32, ahead: dict[int, int]) -> dict[int, int] | None:
    """`ahead` for all ranks where some share no operation with the others: as many repetitions are the same ones.

    A profiler starts and stops at the same step on all ranks. None where the ranks that share operations show
    otherwise, or where one rank recorded more repetitions than another.
    """
    counts = {int(steps[ops.of(r)].max(initial=NO_STEP)) for r in ops.ranks}
    return dict.fromkeys(ops.ranks, 0) if len(counts) == 1 and not any(ahead.values()) else None


def _apart(numbers: I64, steps: I32) -> I64:
    """By how much the numbers of shared operations are ahead of a rank's own, where both have one."""
    both = (numbers != NO_STEP) & (steps != NO_STEP)
    return np.asarray(numbers[both] - steps[both], np.int64)
