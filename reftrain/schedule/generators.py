"""Pipeline schedules from their definitions: forward and backward actions of every rank.

Sources: GPipe (Huang et al. 2019), 1F1B (DAPPLE, Fan et al. 2021), and the flexible interleaved schedule of
"Scaling Llama 3 Training" (ISCA'25): any number m of micro-batches and any k of consecutive micro-batches a
virtual stage, with (v-1)·k + 2·(p-r-1) warm-up forwards on rank r, and all-forward-all-backward when k < p.
"""

from collections.abc import Sequence
from dataclasses import replace

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import Action, Kind, Schedule
from reftrain.schedule.check import first_problem


def make_schedule(name: str, ranks: int, virtual: int, micro_batches: int, consecutive: int) -> Schedule:
    """Build a schedule by name: flexible, 1f1b, afab or gpipe.

    `ranks` is p, `virtual` v, `micro_batches` m, `consecutive` k. Raises `ScheduleError` for an unknown
    name or sizes the scheme has no meaning for.
    """
    if min(ranks, virtual, micro_batches, consecutive) < 1:
        raise ScheduleError("pipeline.schedule", "a size is below 1", "give p, v, m and k of at least 1")
    if name in {"1f1b", "gpipe"} and virtual > 1:
        problem = f"{name} has one stage a rank"
        raise ScheduleError("pipeline.virtual_stages", problem, "give 1 or choose flexible")
    if name == "1f1b":
        warm_up = [ranks - r - 1 for r in range(ranks)]
        return _interleave(name, ranks, 1, micro_batches, micro_batches, warm_up)
    if name == "gpipe":
        return _gpipe(ranks, micro_batches)
    if name not in {"flexible", "afab"}:
        problem = f"{name!r} is unknown"
        raise ScheduleError("pipeline.schedule", problem, "choose flexible, 1f1b, afab or gpipe")
    k = min(consecutive, micro_batches)
    if name == "afab" or k < ranks:
        return _interleave(name, ranks, virtual, micro_batches, k, [virtual * micro_batches] * ranks)
    warm_up = [(virtual - 1) * k + 2 * (ranks - r - 1) for r in range(ranks)]
    return _interleave(name, ranks, virtual, micro_batches, k, warm_up)


def forward_order(virtual: int, micro_batches: int, consecutive: int) -> list[tuple[int, int]]:
    """Order of (virtual stage of the rank, micro-batch): rounds of k micro-batches, stage after stage."""
    return [
        (chunk, micro_batch)
        for start in range(0, micro_batches, consecutive)
        for chunk in range(virtual)
        for micro_batch in range(start, min(start + consecutive, micro_batches))
    ]


def backward_order(virtual: int, micro_batches: int, consecutive: int) -> list[tuple[int, int]]:
    """Like `forward_order`, with the virtual stages of each round from last to first."""
    return [
        (virtual - 1 - chunk, micro_batch)
        for chunk, micro_batch in forward_order(virtual, micro_batches, consecutive)
    ]


def _interleave(
    name: str, ranks: int, virtual: int, micro_batches: int, consecutive: int, warm_up: Sequence[int]
) -> Schedule:
    """Alternate forwards and backwards after each rank's warm-up.

    When k does not divide m, the last round is shorter than the pipeline is deep, and the published warm-up
    can end in a cyclic wait: then every rank warms up by the fewest forwards more that run.
    """
    total = virtual * micro_batches
    forwards = forward_order(virtual, micro_batches, consecutive)
    backwards = backward_order(virtual, micro_batches, consecutive)
    empty = Schedule(name, micro_batches, consecutive, tuple(s % ranks for s in range(ranks * virtual)), ())
    for extra in range(total + 1):
        actions = tuple(
            _one_rank(rank, ranks, forwards, backwards, min(warm_up[rank] + extra, total))
            for rank in range(ranks)
        )
        schedule = replace(empty, actions=actions)
        if first_problem(schedule) is None:
            return schedule
    raise AssertionError("all-forward-all-backward always runs")


def _one_rank(
    rank: int,
    ranks: int,
    forwards: Sequence[tuple[int, int]],
    backwards: Sequence[tuple[int, int]],
    warm_up: int,
) -> tuple[Action, ...]:
    f = [Action(Kind.FORWARD, chunk * ranks + rank, mb) for chunk, mb in forwards]
    b = [Action(Kind.BACKWARD, chunk * ranks + rank, mb) for chunk, mb in backwards]
    steady = [action for pair in zip(f[warm_up:], b, strict=False) for action in pair]
    return tuple(f[:warm_up] + steady + b[len(f) - warm_up :])


def _gpipe(ranks: int, micro_batches: int) -> Schedule:
    """All forwards, then all backwards in the reverse order of micro-batches (GPipe, figure 2c)."""
    actions = tuple(
        tuple(Action(Kind.FORWARD, rank, mb) for mb in range(micro_batches))
        + tuple(Action(Kind.BACKWARD, rank, mb) for mb in reversed(range(micro_batches)))
        for rank in range(ranks)
    )
    return Schedule("gpipe", micro_batches, micro_batches, tuple(range(ranks)), actions)
