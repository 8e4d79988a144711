"""How suspects spend their time compared with their peers: attention, documents, loaders, pauses, and launches."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.intervals import Intervals
from tracekit.steps.features import Features, loading_ns, read_features
from tracekit.steps.host_need import FREE, MOSTLY, launch_pace, on_host
from tracekit.steps.medians import sampled
from tracekit.thresholds.slowrank import (
    CLEARLY_MORE,
    CORRELATION_ENTRIES,
    KIND_RATIO,
    MAJORITY,
    MIN_LOST_SHARE,
    MINOR,
    NEARLY_ALL,
    NO_ACCIDENT,
    PEERS_SAMPLED,
)
from tracekit.units import F64, Mask


def features_of(case: Case, row: int) -> Features | None:
    """The features of the rank in `row` of Steps; None where it has no step whole."""
    return read_features(case.run, case.ops, case.steps, case.steps.ranks[row])


def peers_of(case: Case, row: int, suspects: Sequence[int], *, other_stages: bool = False) -> list[Features]:
    """The features of a sample of unsuspected ranks in the stage of `row`, or in any stage."""
    stage = case.stage_of(row)
    pool = np.arange(len(case.steps.ranks)) if other_stages else stage
    rows = [int(r) for r in pool if r not in suspects and np.isfinite(case.steps.own[r]).any()]
    return [f for r in sampled(rows) if (f := features_of(case, r)) is not None]


def only_attention(case: Case, rows: Sequence[int]) -> bool:
    """Whether the excess of the worst suspect, `rows[0]`, is attention only; a slow device slows products as well.

    Time that tokens and communication explain is not part of the excess: few tokens may hide it.
    """
    mine, peers = features_of(case, rows[0]), peers_of(case, rows[0], rows)
    if mine is None or not peers:
        return False
    excess = mine.own - float(np.median([p.own for p in peers])) - float(np.nanmean(case.met.told[rows[0]]))
    attention = mine.attention - float(np.median([p.attention for p in peers]))
    products = mine.matmul - float(np.median([p.matmul for p in peers]))
    usual = float(np.median([p.attention for p in peers]))
    share = attention / max(usual, 1.0)
    products_share = products / max(float(np.median([p.matmul for p in peers])), 1.0)
    return excess > 0 and attention >= NEARLY_ALL * excess and products_share < MINOR * share


def dealt_to_its_replica(case: Case, row: int) -> bool:
    """Whether the documents of its replica explain why a rank works longer.

    The same documents pass through all stages, so all of them work longer in the same steps, and shorter in others; or
    the stages of the other replicas rise and fall together as well. A slow device has no faster step, and makes no
    other stage longer.
    """
    rank = case.steps.ranks[row]
    line = set(case.mesh.pipeline(rank)) - {rank}
    mates = [i for i, r in enumerate(case.steps.ranks) if r in line]
    values = case.found.value[[row, *mates]]
    values = values[:, np.isfinite(values).all(axis=0)]
    if not mates or values.shape[1] < NO_ACCIDENT:
        return False
    mine, theirs = values[0], values[1:] * np.sign(values[0])
    if not (theirs >= MINOR * np.abs(mine)).all():
        return False
    return bool(mine.min() < -MINOR * np.abs(mine).mean()) or _documents_show(case, row)


def _documents_show(case: Case, row: int) -> bool:
    """Whether the stages of each replica work longer, and shorter, in the same steps, also without that of `row`.

    A constant excess of a rank is not caused by documents and is left out; so is a step that windows cut, in which all
    stages of a replica lack the same part. The excess of `row` may be at most CLEARLY_MORE times the largest change
    of the other replicas.
    """
    rank = case.steps.ranks[row]
    mine = case.mesh.pipeline(rank)
    whole = np.array([number != case.cut for number in case.steps.numbers])
    turns: dict[tuple[int, ...], list[F64]] = defaultdict(list)
    for stage in case.stages:
        lines = [case.mesh.pipeline(case.steps.ranks[r]) for r in stage.tolist()]
        own, others = case.steps.own[stage][:, whole], [line != mine for line in lines]
        beyond = own - np.median(own[others], axis=0) if any(others) else np.full(own.shape, np.nan)
        for line, values in zip(lines, beyond - beyond.mean(axis=1, keepdims=True), strict=True):
            turns[line].append(values)
    every_replica = _alike(list(turns.values()))
    rest = [found for line, found in turns.items() if line != mine]
    most = max(
        (float(np.abs(np.nan_to_num(v)).max(initial=0.0)) for found in rest for v in found), default=0.0
    )
    if float(np.nanmean(case.found.value[row])) > CLEARLY_MORE * most:
        return False
    return every_replica >= NEARLY_ALL and _alike(rest) >= MAJORITY


def _alike(turns: Sequence[Sequence[F64]]) -> float:
    """The correlation between changes of the first and of the other stages of a replica; 0 with too few values."""
    pairs = [(found[0], later) for found in turns for later in found[1:]]
    first = np.concatenate([x for x, _ in pairs] or [np.zeros(0)])
    later = np.concatenate([y for _, y in pairs] or [np.zeros(0)])
    known = np.isfinite(first) & np.isfinite(later)
    if int(known.sum()) < CORRELATION_ENTRIES or not first[known].any() or not later[known].any():
        return 0.0
    return float(np.corrcoef(first[known], later[known])[0, 1])


def late_loaders(case: Case, rows: Sequence[int]) -> tuple[int, ...]:
    """The ranks among `rows` with data loading that explains most of their excess over other stages."""
    peers = peers_of(case, rows[0], rows, other_stages=True)
    if not peers:
        return ()
    own, loader = (float(np.median([getattr(p, name) for p in peers])) for name in ("own", "loader"))
    late = []
    for row in rows:
        whole = case.steps.own[row][np.isfinite(case.steps.own[row])]
        beyond = float(np.mean(whole)) - own if len(whole) else 0.0
        rank = case.steps.ranks[row]
        if beyond > 0 and loading_ns(case.run, case.ops, case.steps, rank) - loader >= MAJORITY * beyond:
            late.append(row)
    return tuple(late)


def stalled_often(case: Case, row: int, excess: float) -> bool:
    """Whether several gaps, each far longer than the peers' longest, make up most of `excess` (ns in all) of `row`.

    One gap is an accident of one operation; several mean that the host stalls repeatedly, although in one step only.
    """
    mine, peers = features_of(case, row), peers_of(case, row, (row,))
    if mine is None or not peers:
        return False
    usual = CLEARLY_MORE * float(np.median([p.gaps.max(initial=0) for p in peers]))
    long = mine.gaps[mine.gaps > max(usual, MIN_LOST_SHARE * excess)]
    return len(long) >= NO_ACCIDENT and float(long.sum()) >= MAJORITY * excess


def launches_alike(case: Case, rows: Sequence[int], others: Sequence[int]) -> bool:
    """Whether hosts of `rows` launch as fast as hosts of `others`, by samples of each; False where unknown.

    Hosts that are delayed at nearly every launch show no pace of their own. If `others` are faster at most launches all
    the same, the hosts of `rows` are slow.
    """
    paces = [pace_among(case, rows, others, percentile) for percentile in (FREE, MOSTLY)]
    return all(p is not None and p[0] <= KIND_RATIO * p[1] for p in paces)


def pace_beside(case: Case, row: int) -> tuple[float, float] | None:
    """The ns between two launches of the host of `row`, and of other hosts of its stage; None where unknown."""
    return pace_among(case, (row,), np.setdiff1d(case.stage_of(row), row).tolist())


def pace_among(
    case: Case, rows: Sequence[int], others: Sequence[int], percentile: float = FREE
) -> tuple[float, float] | None:
    """Return the median ns between two launches of the hosts of `rows`, and of `others`; None where either is unknown.

    The pace of one host is a `percentile` over its launches. For `rows` only the slow steps count: in other steps an
    intermittently slow host launches as fast as any. For `others` all steps count, because in the slow steps they are
    delayed by waiting for `rows`.
    """
    value = np.nan_to_num(case.found.value[list(rows)]).max(axis=0)
    slow = value >= MINOR * max(float(value.max()), 0.0)
    ranks = case.steps.ranks
    mine = [launch_pace(case.run, ranks[r], _spans(case, r, slow), percentile) for r in rows[:PEERS_SAMPLED]]
    theirs = [launch_pace(case.run, ranks[r], None, percentile) for r in others[:PEERS_SAMPLED]]
    known = [p for p in mine if p is not None], [p for p in theirs if p is not None]
    return (float(np.median(known[0])), float(np.median(known[1]))) if all(known) else None


def _spans(case: Case, row: int, slow: Mask) -> Intervals | None:
    """The intervals of the `slow` steps on the host of the rank in `row`; None where their begin is unknown."""
    begins, ends = on_host(case.ops, case.steps, case.steps.ranks[row])
    known = slow & (ends > begins)
    return (begins[known], ends[known]) if known.any() else None
