"""The step model of traces: what each rank posts and needs, how long transfers take, and which ranks leave later."""

from collections import defaultdict
from dataclasses import replace

import numpy as np

from tracekit.arrays import compact
from tracekit.matching.clock import aligned
from tracekit.rank_events.operation_names import UNDIRECTED
from tracekit.step_graph.collective_queue import queue_of, uses_of
from tracekit.step_graph.own_parts import cut, parts_of
from tracekit.step_graph.rank_timeline import CollectiveQueue, RankTimeline, posts_and_needs
from tracekit.step_graph.replay import StepModel, StepRun
from tracekit.thresholds.slowrank import STEP_PARTS
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64, Mask


def model_of(
    run: Measured, *, free: bool = False, joined: bool = False, like: StepModel | None = None
) -> StepModel:
    """Return the model of every run of consecutive analysed steps. Eager sends complete by themselves.

    If `joined`, collectives of unknown groups wait for those at the same place of the other ranks of their stage.

    With `free`, waits that are not matched with all members shrink to the shortest operation of the same message, as
    do sends without proof that they waited for their receiver, and queued collectives could have started with the one
    before them.

    Reuses unchanged timelines and replay order from `like`.
    """
    ops, waits = run.ops, run.waits
    usual = _shortest(run) if free else _usual_transfer(run)
    duration = (ops.end - ops.start).astype(np.float64)
    fixed = np.where(ops.instance < 0, np.minimum(duration - waits.held, usual), -1.0)
    transfer = waits.transfer.astype(np.float64)
    transfer[~waits.complete] = np.minimum(transfer, usual[waits.first_row])[~waits.complete]
    alone = ops.among(("send",)) & (run.buffered.eager | (run.buffered.unsure & free))
    lasts = np.where(run.buffered.unsure, np.minimum(duration, usual), duration)
    fixed[alone] = (lasts - waits.held)[alone].clip(0.0)
    queue = queue_of(run, free=free)
    instance, runs = ops.instance, _runs(run, queue, like)
    if joined:
        number = mates(run)
        instance, fixed, transfer = with_mates(run, number, fixed, transfer)
        runs = _on_one_clock(run, number, runs)
    before = np.append(queue.before, np.full(len(transfer) - len(queue.before), -1))
    later = _ends_later(run) if like is None else like.later
    fixed = fixed if like is None or not np.array_equal(fixed, like.fixed) else like.fixed
    made = StepModel(
        run.steps.own, runs, instance, fixed, transfer, before, later, queue.caused, run.steps.shares
    )
    return made if like is None else made.in_order_of(like)


def using_early(run: Measured, model: StepModel) -> StepModel:
    """Return `model` with messages used as soon as compute can, where the recording does not show when; else itself.

    A rank that is late needs no message that came meanwhile. Without its delay it would wait for some of them, and the
    earlier it needs them, the less a cure saves.
    """
    if np.array_equal(uses_of(run, early=True), uses_of(run)):
        return model
    early = _runs(run, queue_of(run, early=True), model)
    pairs = (zip(a, b, strict=True) for (_, a), (_, b) in zip(early, model.runs, strict=True))
    return model if all(a is b for lines in pairs for a, b in lines) else replace(model, runs=early)


def _runs(run: Measured, queue: CollectiveQueue, like: StepModel | None) -> tuple[StepRun, ...]:
    """Return the timelines of every run of consecutive analysed steps, with unchanged parts taken from `like`."""
    lent = {} if like is None else {(c, line.row): line for c, lines in like.runs for line in lines}
    runs = []
    for columns in runs_of(run):
        timelines = [
            timeline_of(run, queue, rank, columns, lent.get((columns, run.steps.row(rank))))
            for rank in run.ops.ranks
        ]
        kept = tuple(line for line in timelines if line is not None)
        if kept:
            runs.append((columns, kept))
    return tuple(runs)


def _ends_later(run: Measured) -> F64:
    """Return how long after the last member's operation each operation ends, ns; 0 on a device.

    Members of a collective leave it together if devices carry it out. Threads of hosts leave when they get to run.
    """
    ops = run.ops
    later = np.zeros(len(ops.start))
    on_host = ops.by_rank(np.array([not ops.per_rank[r].on_gpu for r in ops.ranks]))
    p2p = ops.p2p[ops.channel] | (ops.channel < 0)
    rows = np.flatnonzero(on_host & ~p2p & (ops.instance >= 0))
    if not len(rows):
        return compact(later)
    ends = aligned(ops, run.clocks, ops.end).astype(np.float64)
    later[rows] = ends[rows] - ends[run.waits.last[ops.instance[rows]]]
    return later


def _shortest(run: Measured) -> F64:
    """Return per operation the duration of the shortest operation of the same message on any rank, ns."""
    ops = run.ops
    _, message = ops.messages
    least = np.full(int(message.max(initial=-1)) + 1, np.inf)
    np.minimum.at(least, message, (ops.end - ops.start).astype(np.float64))
    return np.asarray(least[message], np.float64)


def _usual_transfer(run: Measured) -> F64:
    """Return per operation the median transfer of complete instances of its message on like groups, ns; else infinite.

    An operation that waited for a rank without a trace must not keep its recorded length when another rank is cured.
    Groups along one axis have one network; those along another may carry the same message ten times as fast. Where the
    group is unknown, all instances of the message count.
    """
    ops, waits = run.ops, run.waits
    words, every = ops.messages
    kinds = [(channel.p2p, run.shape_of(channel)) for channel in ops.channels]
    of_kind = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    kind = np.array([*(of_kind[kind] for kind in kinds), -1])[ops.channel]
    whole = np.flatnonzero(waits.complete)
    place = np.stack([every, kind])[:, waits.first_row[whole]]
    level = np.full((len(words), len(of_kind) + 1), np.inf)  # the last column for channel −1
    for token, of in {*zip(*place.tolist(), strict=True), *((token, -1) for token in place[0].tolist())}:
        mine = (place[0] == token) & ((place[1] == of) | (of < 0))
        level[token, of] = float(np.median(waits.transfer[whole[mine]]))
    return np.asarray(level[every, kind], np.float64)


# Joins collectives of unknown groups with those at the same position on the other ranks of their stage.
#
# Ranks of a pipeline stage run the same program, so the members of such a collective's group are at the same
# place of the same stream; a stream that only some ranks have changes the numbers of their others. Letting all
# ranks of the stage wait for each other there is more than they did; a step model of that takes no less time
# than the job, and if it still gives the recorded waits, it shows what an operation waited for.


def mates(run: Measured) -> I64:
    """Return by operation a number shared by the same position on all ranks of its stage; −1 for other operations.

    Only collectives without a group are numbered, and only where all ranks of the stage run equally many of them. One
    that every rank of the job runs once a step is shared by all stages.
    """
    ops = run.ops
    number = np.full(len(ops.start), -1, np.int64)
    open_ = (ops.channel < 0) & run.analysed & ~ops.among(UNDIRECTED)
    places: dict[tuple[int, int, str], dict[int, list[I64]]] = defaultdict(dict)
    for stage, rows in enumerate(run.stages):
        for row in rows.tolist():
            for key, found in _of_rank(run, run.steps.ranks[row], open_).items():
                places[key].setdefault(stage, []).append(found)
    following = 0
    count = len(run.steps.ranks)
    for _, by_stage in sorted(places.items(), key=lambda item: item[0]):
        every = [found for members in by_stage.values() for found in members]
        once = len(every) == count and all(len(found) == 1 for found in every)
        for members in [every] if once else by_stage.values():
            if len(members) > 1 and len({len(found) for found in members}) == 1:
                together = np.array(members)  # ranks × places
                number[together] = following + np.arange(together.shape[1])
                following += together.shape[1]
    return number


def with_mates(run: Measured, number: I64, fixed: F64, transfer: F64) -> tuple[I64, F64, F64]:
    """Return (instance by operation, fixed duration, transfer by instance) with joined ones behind matched ones; ns.

    `number` is that of `mates`, the rest those of a step model. The last rank at a place shows the transfer.
    """
    ops, rows = run.ops, np.flatnonzero(number >= 0)
    instance = ops.instance.copy()
    instance[rows] = len(transfer) + number[rows]
    least = np.full(int(number.max(initial=-1)) + 1, np.inf)
    np.minimum.at(least, number[rows], (ops.end - ops.start)[rows].astype(np.float64))
    return instance, np.where(number >= 0, -1.0, fixed), np.concatenate([transfer, least])


def _on_one_clock(run: Measured, number: I64, runs: tuple[StepRun, ...]) -> tuple[StepRun, ...]:
    """Return `runs` with all clocks as that of the first ranks: the last members of a joined collective leave alike."""
    ops, ends = run.ops, aligned(run.ops, run.clocks, run.ops.end).astype(np.float64)
    of = ops.by_rank(np.array([run.clocks.island[rank] for rank in ops.ranks], np.int64))
    rows = (known := np.flatnonzero(number >= 0))[np.argsort(of[known], kind="stable")]
    first, shift = np.full(int(number.max(initial=-1)) + 1, np.nan), dict[int, float]()
    for mine in np.split(rows, np.flatnonzero(np.diff(of[rows])) + 1) if len(rows) else ():
        places, at = np.unique(number[mine], return_inverse=True)
        left = np.full(len(places), -np.inf)
        np.maximum.at(left, at, ends[mine])
        away, new = first[places] - left, np.isnan(first[places])
        shift[int(of[mine[0]])] = by = 0.0 if new.all() else float(np.nanmedian(away))
        first[places[new]] = left[new] + by
    shifts = [shift.get(run.clocks.island[rank], 0.0) for rank in run.steps.ranks]
    return tuple((c, tuple(replace(t, start=t.start + shifts[t.row]) for t in lines)) for c, lines in runs)


def _of_rank(run: Measured, rank: int, open_: Mask) -> dict[tuple[int, int, str], I64]:
    """Return the `open_` operations of a rank in order of start, by step, place among the token's streams and token."""
    ops, where = run.ops, run.ops.of(rank)
    rows = np.flatnonzero(open_[where]) + where.start
    stream = ops.per_rank[rank].stream
    on = [-1] * len(rows) if stream is None else stream[rows - where.start].tolist()
    of = list(zip(ops.token[rows].tolist(), on, strict=True))
    kinds = set(of)
    place = {(token, n): sum(t == token and m < n for t, m in kinds) for token, n in kinds}
    found: dict[tuple[int, int, str], list[int]] = defaultdict(list)
    for row, step, key in zip(rows.tolist(), ops.step[rows].tolist(), of, strict=True):
        found[step, place[key], key[0]].append(row)
    return {kind: np.array(mine, np.int64) for kind, mine in found.items()}


def runs_of(run: Measured) -> list[tuple[int, ...]]:
    """Return the columns of analysed steps, in runs of consecutive steps."""
    steps = run.steps
    if not steps.labelled:
        return [tuple(range(len(steps.numbers)))] if steps.numbers else []
    every = sorted({int(n) for n in np.unique(run.ops.step)})
    whole = np.isfinite(steps.own)
    runs: list[list[int]] = []
    for column, number in enumerate(steps.numbers):
        before = steps.numbers[column - 1] if column else number
        follows = number == before + 1 and every.index(number) == every.index(before) + 1
        if column and follows and (whole[:, column] == whole[:, column - 1]).all():
            runs[-1].append(column)
        else:
            runs.append([column])
    return [tuple(r) for r in runs]


def timeline_of(
    run: Measured, queue: CollectiveQueue, rank: int, columns: tuple[int, ...], like: RankTimeline | None = None
) -> RankTimeline | None:  # fmt: skip
    """Return the timeline of `rank` over the steps in `columns`; None where one of them is not recorded whole.

    Reuses parts and unchanged events from `like`, the timeline of the same rank and steps under another queue.
    """
    ops, steps = run.ops, run.steps
    row = steps.row(rank)
    if not np.isfinite(steps.own[row, list(columns)]).all():
        return None
    where = ops.of(rank)
    labels = ops.step[where] if steps.labelled else np.zeros(where.stop - where.start, np.int32)
    rows = np.flatnonzero(np.isin(labels, [steps.numbers[c] for c in columns])) + where.start
    follows = queue.digest(rows)
    if like is not None and like.follows == follows:
        return like
    kind, reading, event = posts_and_needs(ops, queue, rows, _marked(run, row, rows, columns))
    if like is not None:
        return _with_events(like, kind, reading, event, follows)
    begins = steps.begin[row, list(columns)]
    knots = np.maximum.accumulate(np.append(begins, begins[-1] + steps.own[row, columns[-1]]))
    numbers, mine = [steps.numbers[c] for c in columns], labels[rows - where.start]
    every = [ops.at_start[rows[mine == n]] for n in numbers]
    blocks = [p[np.linspace(0, len(p), STEP_PARTS, endpoint=False).astype(int)[1:]] for p in every]
    return RankTimeline(
        row,
        kind.astype(np.int8),
        reading,
        event.astype(np.int32),
        knots,
        blocks=cut(knots, blocks),
        parts=parts_of(ops, rows, numbers, mine, knots, queue.ready),
        start=_begin_wall(run, rank, rows, knots[0]),
        follows=follows,
    )


def _marked(run: Measured, row: int, rows: I64, columns: tuple[int, ...]) -> I64:
    """Return for each whole step in `columns` two operations: that with which the cut step ends, and the step's last.

    `rows` are the operations of the rank in `row`. None unless the cut step is among `columns`, behind others.
    """
    steps, cut = run.steps, run.steps.cut
    whole = [c for c in columns if cut and steps.numbers[c] != cut.number]
    if cut is None or not 0 < len(whole) < len(columns) or (cut.last[row, whole] < 0).any():
        return rows[:0]
    mine = [rows[run.ops.step[rows] == steps.numbers[c]] for c in whole]
    ends = [some[np.argmax(run.ops.end[some])] for some in mine]
    return np.stack([cut.last[row, whole], ends], axis=1).ravel()


def _with_events(like: RankTimeline, kind: I64, reading: F64, event: I64, follows: bytes) -> RankTimeline:
    """Return `like` with other events, which follow from other queues; `like` itself where they are equal."""
    if np.array_equal(kind, like.kinds) and np.array_equal(event, like.events):
        same = np.array_equal(reading, like.readings)
        return like if same else replace(like, readings=reading, follows=follows)
    return replace(
        like, kinds=kind.astype(np.int8), readings=reading, events=event.astype(np.int32), follows=follows
    )


def _begin_wall(run: Measured, rank: int, rows: I64, reading: float) -> float:
    """Return the aligned wall time (ns) at which the rank's own time was `reading`, before its operation `rows[0]`."""
    first = int(rows[0])
    lead = max(float(run.ops.at_start[first]) - reading, 0.0)
    return float(run.clocks.align(rank, run.ops.start[first : first + 1])[0]) - lead
