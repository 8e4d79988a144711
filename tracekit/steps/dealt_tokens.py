"""The part of each rank's work that depends on the tokens that all-to-alls dispatch to its experts.

The router sends tokens where the data wants them, so the work between one all-to-all and the next follows the number of
elements that the rank received. No rank is at fault for that, even if the same expert is chosen often. If sizes were
not recorded, uneven work behind some all-to-alls, and not behind others, looks like it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.matching.match import Operations
from tracekit.steps.medians import weighted_median, weighted_quantile
from tracekit.steps.steps import Steps
from tracekit.thresholds.slowrank import NEARLY_ALL
from tracekit.thresholds.tables import EVEN_SIZES, MOST_DEALT
from tracekit.units import F64


@dataclass(frozen=True)
class Dealt:
    """Work that depends on tokens; ranks × steps as in `Steps`, ns."""

    beyond: (
        F64  # own time beyond the peers' that the number of tokens explains; negative where a rank got few
    )
    of_unknown_size: F64  # own time beyond the peers' that unrecorded sizes may explain
    # A step: how much longer the rank with most tokens works than the median, over all all-to-alls of all stages: a
    # micro-batch passes through every stage, and meets another longest rank on each.
    lost_ns: float


def dealt_tokens(ops: Operations, steps: Steps, stages: Sequence[npt.NDArray[np.int64]]) -> Dealt:
    """Return the work of each rank that depends on its tokens; `stages` are the rows of ranks with the same work."""
    beyond, of_unknown_size, lost = np.zeros(steps.own.shape), np.zeros(steps.own.shape), 0.0
    kind = _dealing(ops)
    if kind is None:
        return Dealt(beyond, of_unknown_size, lost)
    for rows in (stage for stage in stages if len(stage) > 1):
        work, tokens, _ = _parts(ops, steps, rows, kind)
        if not work.shape[-1]:
            continue
        follows = _following(work, tokens)
        beyond[rows] = np.nansum(follows, axis=-1)
        of_unknown_size[rows] = _of_unknown_size(work, tokens)
        middle = _median(follows, axis=0)
        most = np.where(np.isfinite(follows), follows, -np.inf).max(axis=0)
        spread = np.where(np.isfinite(most), most - middle, 0.0)
        lost += float(spread.sum(axis=-1).mean())
    return Dealt(beyond, of_unknown_size, lost)


class Evened(NamedTuple):
    """The work of a rank behind its all-to-alls, and what an even share of tokens makes of it.

    begin, end: readings of own time, ns. column: its step, as in `Steps`. factor: by how much it is longer then.
    """

    begin: F64
    end: F64
    column: npt.NDArray[np.int64]
    factor: F64


def even_shares(
    ops: Operations,
    steps: Steps,
    stages: Sequence[npt.NDArray[np.int64]],
    groups: Sequence[npt.NDArray[np.int64]],
) -> dict[int, Evened]:
    """The work of each rank by its row, if every all-to-all brought all ranks of its group an equal share of tokens.

    A router deals all tokens of a group out, so that an even share is their mean. stages, groups: rows of `steps`.
    """
    kind, found = _dealing(ops), {}
    for rows in stages if kind is not None else ():
        work, tokens, begin = _parts(ops, steps, rows, kind or "")
        follows = _following(work, tokens)
        known, wanted = np.isfinite(follows), work.copy()
        for mine in (np.flatnonzero(np.isin(rows, group)) for group in groups):
            of_tokens = np.where(known[mine], follows[mine], 0.0)
            mean = of_tokens.sum(axis=0) / np.maximum(known[mine].sum(axis=0), 1)
            wanted[mine] = np.maximum(work[mine] - np.where(known[mine], of_tokens - mean, 0.0), 0.0)
        for i, row in enumerate(rows.tolist()):
            whole = np.isfinite(work[i])
            spent, start = work[i][whole], begin[i][whole]
            factor = np.asarray(wanted[i][whole] / np.maximum(spent, 1.0), np.float64)
            found[row] = Evened(start, start + spent, np.nonzero(whole)[0], factor)
    return found


def _dealing(ops: Operations) -> str | None:
    """Return the kind of the operations that may deal tokens: collectives of any kind if the trace names few kinds."""
    if "all_to_all" in ops.op.kinds():
        return "all_to_all"
    return "collective" if 2 * int((ops.op == "collective").sum()) > len(ops.op) else None


def _parts(ops: Operations, steps: Steps, rows: npt.NDArray[np.int64], kind: str) -> tuple[F64, F64, F64]:
    """(own time from the start of each all-to-all to the next one, elements that it brought, where that time begins).

    Each has the shape rows × steps × places.

    Places count from the end of a step, because kernels of the step before may be at the start of the first one.
    NaN where a rank has fewer, and where the elements are unknown.
    """
    found = {}
    for i, row in enumerate(rows.tolist()):
        where, source = ops.of(steps.ranks[row]), ops.per_rank[steps.ranks[row]]
        labels = ops.step[where] if steps.labelled else np.zeros(where.stop - where.start, np.int32)
        dealing = ops.op[where] == kind
        begin = ops.at_start[where]
        for column, number in enumerate(steps.numbers):
            calls = np.flatnonzero(dealing & (labels == number))
            if len(calls) > 1 and np.isfinite(steps.own[row, column]):
                sizes = np.full(len(calls), -1) if source.taken is None else source.taken[calls]
                spent = np.diff(begin[calls]).astype(np.float64)
                found[i, column] = (spent, np.where(sizes < 0, np.nan, sizes)[:-1], begin[calls[:-1]])
    usual = int(np.median([len(spent) for spent, *_ in found.values()])) if found else 0
    parts = np.full((3, len(rows), len(steps.numbers), usual), np.nan)
    for place, values_at in found.items():
        many = min(len(values_at[0]), usual)
        if many:
            parts[(slice(None), *place)][:, -many:] = [values[-many:] for values in values_at]
    return np.maximum(parts[0], 0.0), parts[1], parts[2]


def _following(work: F64, tokens: F64) -> F64:
    """Return the work beyond the median of its position that the number of tokens explains; NaN where unknown.

    The time per token is at most the median work divided by the median number of tokens.
    """
    known = np.isfinite(work) & np.isfinite(tokens)
    level, count = (_median(np.where(known, v, np.nan), axis=(0, 1)) for v in (work, tokens))
    result = np.where(known, 0.0, np.nan)
    for place in range(work.shape[-1]):
        sampled = np.flatnonzero(known[..., place].ravel())
        sampled = sampled[:: len(sampled) // MOST_DEALT + 1]
        x, y = tokens[..., place].ravel()[sampled], work[..., place].ravel()[sampled]
        slope = _slope(x, y, EVEN_SIZES * count[place])
        rate = min(max(slope, 0.0), level[place] / max(count[place], 1.0))
        result[..., place] = rate * (tokens[..., place] - count[place])
    return result


def _slope(x: F64, y: F64, least: float) -> float:
    """Return the slope of `y` over `x`: the median over all pairs, weighted by their distance (Theil and Sen).

    0 without a pair that is further apart than `least`. One slow rank affects only its own pairs.
    """
    one, other = np.triu_indices(len(x), 1)
    apart = x[other] - x[one]
    distinct = np.abs(apart) > least
    if not distinct.any():
        return 0.0
    return weighted_median((y[other] - y[one])[distinct] / apart[distinct], np.abs(apart[distinct]), 0.0)


def _of_unknown_size(work: F64, tokens: F64) -> F64:
    """Return the own time beyond the peers' that tokens of unrecorded number may explain, rows × steps.

    A slow rank is slow after nearly every all-to-all; tokens make only the work of experts longer. Only all-to-alls
    without recorded sizes leave anything open. The usual time is the lower median: half of the ranks may hold an
    expert that is chosen often.
    """
    if np.isfinite(tokens).all():
        return np.zeros(work.shape[:2])
    known = np.isfinite(work)
    level = np.nan_to_num(np.nanquantile(np.where(known.any(axis=0), work, 0.0), 0.5, axis=0, method="lower"))
    share = np.array([[_of_nearly_all(spent, level[n]) for n, spent in enumerate(of)] for of in work])
    share = np.maximum(share - np.median(share, axis=0), 0.0)
    unsized = known & ~np.isfinite(tokens)
    spent, usual = np.where(unsized, work, 0.0).sum(axis=-1), (unsized * level).sum(axis=-1)
    return np.asarray(np.maximum(spent - (1.0 + share) * usual, 0.0), np.float64)


def _of_nearly_all(work: F64, usual: F64) -> float:
    """The relative excess over the `usual` time of each place that nearly all work reaches; 0 without any."""
    at = np.flatnonzero(np.isfinite(work) & (usual > 0))
    return weighted_quantile(work[at] / usual[at] - 1.0, usual[at], 0.0, 1.0 - NEARLY_ALL)


def _median(values: F64, axis: int | tuple[int, ...]) -> F64:
    """Return the median of the known values along `axis`; 0 without any."""
    known = np.isfinite(values).any(axis=axis)
    return np.asarray(np.nanmedian(np.where(known, values, 0.0), axis=axis), np.float64)
