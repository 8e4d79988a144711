"""Whether a rank works longer because of its documents: ranks with the same ones do as well, in attention most.

The ranks of a tensor group and the stages of a replica get the same documents, which change from step to step.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from tracekit.analysis.slowrank.hypotheses.suspect_work import peers_of
from tracekit.axes import PIECES, SAME_TOKENS
from tracekit.case.case import Case
from tracekit.expected.excess import slows_all
from tracekit.steps.features import Features
from tracekit.thresholds.slowrank import (
    CLEARLY_MORE,
    CORRELATION_ENTRIES,
    FAR_MORE,
    KIND_RATIO,
    MAJORITY,
    MINOR,
    NEARLY_ALL,
    NO_ACCIDENT,
    STAGE_TELLING_PEERS,
)
from tracekit.units import F64


def only_attention(case: Case, rows: Sequence[int]) -> bool:
    """Whether the excess of the worst suspect, `rows[0]`, is attention only; a slow device slows products as well.

    Time that tokens and communication explain is no part of it: few tokens may hide it. Nor may attention be slow.
    """
    mine, peers = case.features(rows[0]), peers_of(case, rows[0], rows)
    if mine is None or not peers:
        return False
    parts = np.median([(p.own, p.attention, p.matmul) for p in peers], axis=0).tolist()
    excess = mine.own - parts[0] - case.steps.mean(case.met.explained[rows[0]])
    attention, products = mine.attention - parts[1], mine.matmul - parts[2]
    share, products_share = attention / max(parts[1], 1.0), products / max(parts[2], 1.0)
    longer = excess > 0 and attention >= NEARLY_ALL * excess and products_share < MINOR * share
    return bool(longer) and not _lasts(case, mine, peers, rows[0])


def _lasts(case: Case, mine: Features, peers: Sequence[Features], row: int) -> bool:
    """Whether documents do not explain longer attention: a rank with the same ones takes less in each of several steps.

    Or it is as much longer in every step, the peers agree, and other stages of the replica, which get the same
    documents, are no longer. Pieces of one sequence differ by design.
    """
    line = set(case.mesh.line(mine.rank, SAME_TOKENS)) - {mine.rank}
    mates = [case.features(mate) for mate, rank in enumerate(case.steps.ranks) if rank in line]
    same = [f.attention_by_step for f in mates if f is not None]
    every = [f.attention_by_step for f in (mine, *peers)]
    if len({len(found) for found in (*every, *same)}) > 1 or len(every[0]) < NO_ACCIDENT:
        return False
    if same:
        return bool((np.array(every[0]) > KIND_RATIO * np.min(same, axis=0)).all())
    if len(peers) < STAGE_TELLING_PEERS or any(case.mesh.sizes[axis] > 1 for axis in PIECES):
        return False
    beyond = np.array(every) - np.median(every[1:], axis=0)
    varied = max(float(np.abs(beyond[1:]).max(initial=0.0)), float(np.ptp(beyond[0])))
    return float(beyond[0].min()) > FAR_MORE * varied and not _stages_follow(case, row)


def dealt_to_its_replica(case: Case, row: int) -> bool:
    """Whether the documents of its replica explain why a rank works longer.

    The same documents pass through all stages, so all of them work longer in the same steps, and shorter in others; or
    the stages of the other replicas rise and fall together as well. A slow device has no faster step, and makes no
    other stage longer.
    """
    if not _stages_follow(case, row):
        return False
    mine = case.found.value[row]
    return bool(np.nanmin(mine) < -MINOR * np.nanmean(np.abs(mine))) or _documents_show(case, row)


def may_be_documents(case: Case, row: int) -> bool:
    """Whether all ranks with the documents of the rank in `row` are longer when it is, which is not always.

    A slow device, or a slow node, lengthens nearly all kernels of a step; documents leave some as they are.
    """
    same = case.mesh.line(case.steps.ranks[row], SAME_TOKENS)
    mates = {mate for rank in same for mate in case.mesh.pipeline(rank)}.intersection(case.steps.ranks)
    rows = [row, *(case.steps.row(rank) for rank in sorted(mates))]
    values = case.found.value[rows][:, np.isfinite(case.found.value[rows]).all(axis=0)]
    long = values > MINOR * case.found.mean[row]
    if len(mates) < 2 or not case.on_gpu(row) or long[0].all() or not (long == long[0]).all():
        return False
    return not slows_all(case.kernels, case, case.found, row, rows)


def _stages_follow(case: Case, row: int) -> bool:
    """Whether all other stages of the replica of `row` work longer where it does, and shorter where it does."""
    values = case.found.value[[row, *(mate for mate in case.line_of(row) if mate != row)]]
    values = values[:, np.isfinite(values).all(axis=0)]
    if len(values) == 1 or values.shape[1] < NO_ACCIDENT:
        return False
    return bool((values[1:] * np.sign(values[0]) >= MINOR * np.abs(values[0])).all())


def _documents_show(case: Case, row: int) -> bool:
    """Whether the stages of each replica work longer, and shorter, in the same steps, also without that of `row`.

    A constant excess of a rank is not caused by documents and is left out; so is a step that windows cut, in which all
    stages of a replica lack the same part. The excess of `row` may be at most CLEARLY_MORE times the largest change
    of the other replicas.
    """
    rank = case.steps.ranks[row]
    mine = case.mesh.pipeline(rank)
    whole = case.steps.shares == 1.0
    turns: dict[tuple[int, ...], list[F64]] = defaultdict(list)
    for stage in case.stages:
        lines = [case.mesh.pipeline(case.steps.ranks[r]) for r in stage.tolist()]
        own, others = case.steps.own[stage][:, whole], [line != mine for line in lines]
        beyond = own - np.median(own[others], axis=0) if any(others) else np.full(own.shape, np.nan)
        for line, values in zip(lines, beyond - beyond.mean(axis=1, keepdims=True), strict=True):
            turns[line].append(values)
    every_replica = _alike(list(turns.values()))
    rest = [found for line, found in turns.items() if line != mine]
    swings = [float(np.abs(np.nan_to_num(v)).max(initial=0.0)) for found in rest for v in found]
    most = max(swings, default=0.0)
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
