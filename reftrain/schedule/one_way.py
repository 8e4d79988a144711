"""Synchronous schedules of one pipeline, from their definitions.

Sources: GPipe (Huang et al. 2019), 1F1B (DAPPLE, Fan et al. 2021), interleaved 1F1B (Narayanan et al. 2021),
breadth-first (Lamy-Poirier 2022), and the flexible schedule of "Scaling Llama 3 Training" (ISCA'25): any
number m of micro-batches and any k of consecutive micro-batches a virtual stage, with (v-1)·k + 2·(p-r-1)
warm-up forwards on rank r, and all-forward-all-backward when k < p.
"""

from collections.abc import Sequence
from dataclasses import replace

from reftrain.schedule.actions import Action, Kind, Schedule
from reftrain.schedule.check import runs
from reftrain.schedule.spec import ScheduleSpec


def gpipe(spec: ScheduleSpec) -> Schedule:
    """All forwards, then all backwards in the reverse order of micro-batches (GPipe, figure 2c)."""
    spec.one_stage_a_rank()
    ranks, m = spec.ranks, spec.micro_batches
    actions = tuple(
        tuple(Action(Kind.FORWARD, rank, mb) for mb in range(m))
        + tuple(Action(Kind.BACKWARD, rank, mb) for mb in reversed(range(m)))
        for rank in range(ranks)
    )
    return Schedule(spec.name, m, m, tuple(range(ranks)), actions)


def one_f_one_b(spec: ScheduleSpec) -> Schedule:
    """One forward, one backward in turn after p-r-1 warm-up forwards (DAPPLE)."""
    spec.one_stage_a_rank()
    warm_up = [spec.ranks - r - 1 for r in range(spec.ranks)]
    return _interleave(spec, spec.micro_batches, warm_up)


def flexible(spec: ScheduleSpec) -> Schedule:
    """Llama 3's schedule: any k and any m; k < p degenerates to all-forward-all-backward."""
    ranks, virtual = spec.ranks, spec.virtual
    k = min(spec.consecutive, spec.micro_batches)
    if k < ranks:
        return _interleave(spec, k, [virtual * spec.micro_batches] * ranks)
    return _interleave(spec, k, [(virtual - 1) * k + 2 * (ranks - r - 1) for r in range(ranks)])


def interleaved(spec: ScheduleSpec) -> Schedule:
    """Interleaved 1F1B: the flexible schedule at k = p, for m a multiple of p as its authors require."""
    if spec.virtual < 2:
        raise spec.refuse(
            "pipeline.virtual_stages",
            "interleaves the virtual stages of a rank",
            "give 2 or more, or schedule = 1f1b",
        )
    if spec.micro_batches % spec.ranks:
        problem = f"cannot take {spec.micro_batches} micro-batches on {spec.ranks} ranks"
        remedy = f"give a multiple of {spec.ranks}, or schedule = flexible"
        raise spec.refuse("pipeline.schedule", problem, remedy)
    return flexible(replace(spec, consecutive=spec.ranks))


def breadth_first(spec: ScheduleSpec) -> Schedule:
    """All micro-batches on each virtual stage in turn, forward and back: k = m."""
    return _interleave(spec, spec.micro_batches, [spec.virtual * spec.micro_batches] * spec.ranks)


def afab(spec: ScheduleSpec) -> Schedule:
    """All forwards in rounds of k, then all backwards."""
    k = min(spec.consecutive, spec.micro_batches)
    return _interleave(spec, k, [spec.virtual * spec.micro_batches] * spec.ranks)


def forward_order(virtual: int, micro_batches: int, consecutive: int) -> list[tuple[int, int]]:
    """Return the order of (virtual stage of the rank, micro-batch): rounds of k micro-batches, stage after stage."""
    return [
        (chunk, micro_batch)
        for start in range(0, micro_batches, consecutive)
        for chunk in range(virtual)
        for micro_batch in range(start, min(start + consecutive, micro_batches))
    ]


def backward_order(virtual: int, micro_batches: int, consecutive: int) -> list[tuple[int, int]]:
    """Return `forward_order` with the virtual stages of each round from last to first."""
    return [
        (virtual - 1 - chunk, micro_batch)
        for chunk, micro_batch in forward_order(virtual, micro_batches, consecutive)
    ]


def _interleave(spec: ScheduleSpec, consecutive: int, warm_up: Sequence[int]) -> Schedule:
    """Alternate forwards and backwards after each rank's warm-up.

    When k does not divide m, the last round can be shorter than the pipeline, and the published warm-up can end in a
    cyclic wait. Then every rank warms up by the fewest more forwards with which the table runs.
    """
    total = spec.virtual * spec.micro_batches
    for extra in range(_fewest_more(spec, consecutive, warm_up), total + 1):
        schedule = _table(spec, consecutive, [warm + extra for warm in warm_up])
        if runs(schedule):
            return schedule
    raise AssertionError("all-forward-all-backward always runs")


def _fewest_more(spec: ScheduleSpec, consecutive: int, warm_up: Sequence[int]) -> int:
    """Return the fewest more forwards with which a table may run, found on one with two whole rounds.

    Further whole rounds change nothing, but where all forwards of a rank had to come first they still have to.
    """
    rest = spec.micro_batches % consecutive
    short = replace(spec, micro_batches=2 * consecutive + rest)
    if not rest or short.micro_batches >= spec.micro_batches:
        return 0
    some = short.virtual * short.micro_batches
    extra = next(n for n in range(some) if runs(_table(short, consecutive, [warm + n for warm in warm_up])))
    first = extra + max(warm_up)
    return extra if first < some else extra + spec.virtual * spec.micro_batches - some


def _table(spec: ScheduleSpec, consecutive: int, warm_up: Sequence[int]) -> Schedule:
    """Return the table in which each rank warms up by so many forwards, or by all."""
    ranks, virtual, m = spec.ranks, spec.virtual, spec.micro_batches
    orders = forward_order(virtual, m, consecutive), backward_order(virtual, m, consecutive)
    stages = tuple(stage % ranks for stage in range(ranks * virtual))
    actions = (_one_rank(rank, ranks, *orders, min(warm, virtual * m)) for rank, warm in enumerate(warm_up))
    return Schedule(spec.name, m, consecutive, stages, tuple(actions))


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
