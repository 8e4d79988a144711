"""The extra time of each rank's kernels because communication runs on the device at the same time.

A kernel that shares the device with a collective is longer on every rank, but ranks may share unequally: groups differ
in the length of their transfers, and some communicate when others do not. The slowdown of a kind of kernel is learnt
from kernels at the same place of a step that share the device for different parts of their time.
"""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tracekit.matching.match import Operations
from tracekit.steps.medians import weighted_median
from tracekit.steps.step_kernels import StepKernels, kernels_in_steps
from tracekit.steps.steps import Steps
from tracekit.store import Run
from tracekit.thresholds.slowrank import MOST_STRETCHED
from tracekit.thresholds.tables import LIKE_SHARE
from tracekit.units import F64


def stretched(run: Run, ops: Operations, steps: Steps, rows: Sequence[int]) -> F64:
    """Return the own time that kernels of `rows` (of Steps) take longer beside communication, rows × steps, ns.

    `rows` do the same work. 0 if kernels at the same place share the device equally on all of them, so that their
    slowdown is unknown.
    """
    read = [kernels_in_steps(run, ops, steps, row) for row in rows]
    places = _places(read)
    speed = np.array([_speed(places, i) for i in range(len(read))])
    share = {name: _share(table, speed) for name, table in places.items()}
    result = np.zeros((len(rows), len(steps.numbers)))
    for i, kernels in enumerate(read):
        part = np.array([share.get(n, 0.0) for n in kernels.name.tolist()])
        np.add.at(result[i], kernels.column, kernels.shared * part * kernels.counts)
    return result


def _places(read: Sequence[StepKernels]) -> dict[str, F64]:
    """Return kernel name → (length, shared time), ranks × positions × 2, medians over steps; equal counts only."""
    found: dict[str, list[F64]] = defaultdict(list)
    for kernels in read:
        for name in np.unique(kernels.name.astype(str)).tolist():
            mine = kernels.name == name
            steps = [np.flatnonzero(mine & (kernels.column == c)) for c in np.unique(kernels.column)]
            if len({len(s) for s in steps}) == 1:
                rows = np.array(steps)
                pair = np.stack([kernels.lasted[rows], kernels.shared[rows]], axis=-1)
                found[name].append(np.median(pair, axis=0))
    return {
        name: np.stack(tables)
        for name, tables in found.items()
        if len(tables) == len(read) and len({len(t) for t in tables}) == 1
    }


def _like(table: F64) -> tuple[F64, npt.NDArray[np.bool_]]:
    """Return (median kernel of each position, whether each rank's kernel shares the device to the same extent)."""
    usual = np.median(table, axis=0)
    part, others = table[..., 1] / np.maximum(table[..., 0], 1.0), usual[:, 1] / np.maximum(usual[:, 0], 1.0)
    return usual, np.abs(part - others) <= LIKE_SHARE


def _speed(places: dict[str, F64], rank: int) -> float:
    """Return how many times as long kernels of a rank take as usual ones with equal sharing; 1 if it is unknown."""
    ratio, weight = [np.zeros(0)], [np.zeros(0)]
    for table in places.values():
        usual, like = _like(table)
        ratio.append(table[rank, like[rank], 0] / np.maximum(usual[like[rank], 0], 1.0))
        weight.append(usual[like[rank], 0])
    ratios = weighted_median(np.concatenate(ratio), np.concatenate(weight), 1.0)
    return ratios or 1.0  # kernels of a damaged trace may take no time


def _share(table: F64, speed: F64) -> float:
    """Return the share of their time beside communication that kernels of one name lose.

    A kernel that takes d, with s beside communication, would take d − share × s alone. Kernels at one position of
    different ranks give the share, once each rank's own speed is taken out.
    """
    usual, like = _like(table)
    own = table / speed[:, None, None]
    longer, more = (own - usual)[~like].T
    part = weighted_median(longer / np.where(more == 0, 1.0, more), np.abs(more), 0.0)
    return min(max(part, 0.0), MOST_STRETCHED)
