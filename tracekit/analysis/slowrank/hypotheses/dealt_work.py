"""Which kernels follow the data: they are longer and shorter together on all ranks with the same data.

The ranks of one replica get the same documents, so the same kernels of all its stages, tensor and context ranks are
longer in the same micro-batches. Chance lengthens single kernels, and a slow device lengthens all kernels of a step on
one rank. Where no other rank has the same data, kernels of different names on one rank are compared: they follow the
same documents.

More data also means more matrix products and more attention, which a slow device, noise and communication do not add.
So where ranks that do the same work launch other numbers of them in a step, and not the same rank more of them
throughout, the data distribute the work. Other additional kernels, as of a check, say nothing of the data.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from operator import attrgetter

import numpy as np

from tracekit.case.case import Case
from tracekit.expected.same_kernels import Kind, SameKernels, same_kernels
from tracekit.step_graph.statistics import MAD_TO_SIGMA, usual_of_others
from tracekit.steps.features import ATTENTION, MATMUL
from tracekit.steps.medians import sampled
from tracekit.steps.step_kernels import StepKernels
from tracekit.thresholds.slowrank import (
    CORRELATION_ENTRIES,
    MAJORITY,
    MINOR,
    RANKS_READ,
    RANKS_SAMPLED,
    USUAL_VARIATION,
    Z_LIMIT,
)
from tracekit.units import F64, Mask


@dataclass(frozen=True)
class Read:
    """The kernels of some ranks, whole replicas where possible: by row of Steps, and by stage and name."""

    by_row: dict[int, StepKernels]
    stages: tuple[dict[Kind, SameKernels], ...]

    def of(self, kind: Kind) -> list[SameKernels]:
        """The kernels of a kind, for each stage that runs it equally often in every step."""
        return [stage[kind] for stage in self.stages if kind in stage]

    @property
    def undisturbed(self) -> "Read":
        """The same without places where communication overlaps on some ranks only, which lengthens their kernels.

        Stages that run a kind equally often keep the same places, so that ranks with the same data remain comparable.
        """
        kept: list[dict[Kind, SameKernels]] = [{} for _ in self.stages]
        for kind in _names(self):
            alone: dict[tuple[int, ...], list[Mask]] = defaultdict(list)
            for kernels in self.of(kind):
                alone[kernels.lasted.shape[1:]].append(kernels.alone)
            for stage, mine in zip(kept, (stage.get(kind) for stage in self.stages), strict=True):
                if mine is not None:
                    everywhere = np.logical_and.reduce(alone[mine.lasted.shape[1:]])
                    places = np.flatnonzero(everywhere if everywhere.any() else mine.alone)
                    if len(places):
                        stage[kind] = mine.at(places)
        return Read(self.by_row, tuple(kept))


@dataclass(frozen=True)
class Followers:
    """Kernels that follow the data, with the share of their variance that the data cause."""

    share: dict[Kind, float]
    by_step: bool  # only whole steps show it, not the places within a step


def read_kernels(case: Case) -> Read | None:
    """The kernels of ranks that have every step whole on a GPU; None where no stage has two such ranks."""
    rows = [
        row
        for row, rank in enumerate(case.steps.ranks)
        if np.isfinite(case.steps.own[row]).all() and case.ops.per_rank[rank].on_gpu
    ]
    if len(rows) > RANKS_READ:
        rows = _some_replicas(case, rows)
    chosen = [[r for r in stage.tolist() if r in set(rows)] for stage in case.stages]
    if max(map(len, chosen), default=0) < 2:
        return None
    by_row = {row: case.kernels(row) for row in rows}
    many = len(case.steps.numbers)
    stages = tuple(same_kernels([by_row[r] for r in mine], mine, many) for mine in chosen if len(mine) > 1)
    return Read(by_row, stages)


def _some_replicas(case: Case, rows: list[int]) -> list[int]:
    """The `rows` of the first whole replicas, at most RANKS_READ; the first rows where these replicas hold too few."""
    replicas: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        replicas[case.replica_of(row)].append(row)
    kept: list[int] = []
    for mine in replicas.values():
        if len(kept) + len(mine) <= RANKS_READ:
            kept += mine
    return sorted(kept) if len(kept) > len(rows) / len(replicas) else rows[:RANKS_READ]


def followers(case: Case, read: Read) -> Followers | None:
    """The kernels that follow the data; None where none do.

    No slow device explains common deviations within a step. It may explain those of whole steps, so that then some
    kernels must keep their usual length.
    """
    clear = read.undisturbed
    for off, by_step in ((_within, False), (_in_step, True)):
        share = _of_mates(case, clear, off) or _of_names(clear, off)
        if share and (not by_step or _others_untouched(clear, share)):
            return Followers(_namesakes(case, clear, share) | share, by_step)
    return None


def _namesakes(case: Case, clear: Read, known: dict[Kind, float]) -> dict[Kind, float]:
    """The kinds named as one that is `known` to follow the data, where replicas have their steps in common.

    Data may differ so much that places of one kernel take them for kernels of several lengths; a length at one place
    shows no difference within a step.
    """
    names = {name for name, _ in known}
    return {kind: share for kind, share in _of_mates(case, clear, _in_step).items() if kind[0] in names}


_within, _in_step = attrgetter("off_within"), attrgetter("off_in_step")
"""What a share is found in: deviations within a step, and those of whole steps."""


def _of_mates(case: Case, read: Read, off: Callable[[SameKernels], F64]) -> dict[Kind, float]:
    """Name → the share of its variance that the ranks of a replica have in common, where chance does not explain it."""
    share: dict[Kind, float] = {}
    for name in _names(read):
        stages = read.of(name)
        shape = Counter(s.lasted.shape[1:] for s in stages).most_common(1)[0][0]
        replicas: dict[int, list[F64]] = defaultdict(list)
        for kernels in (s for s in stages if s.lasted.shape[1:] == shape):
            for row, values in zip(kernels.rows, off(kernels), strict=True):
                replicas[case.replica_of(row)].append(values)
        common = _in_common([np.stack(v) for v in replicas.values() if len(v) > 1])
        if common is not None:
            share[name] = common
    return share


def _of_names(read: Read, off: Callable[[SameKernels], F64]) -> dict[Kind, float]:
    """Name → the largest share of its variance that another name has in common on the same ranks."""
    share: dict[Kind, float] = {}
    for stage in read.stages:
        for one, other in combinations(sorted(stage), 2):
            a, b = off(stage[one]), off(stage[other])
            if a.shape != b.shape:
                continue
            common = _in_common(list(np.stack([a, b], axis=1)), tests=len(stage) ** 2)
            if common is not None:
                share |= {name: max(share.get(name, 0.0), common) for name in (one, other)}
    return share


def _in_common(groups: Sequence[F64], tests: int = 1) -> float | None:
    """The share of the variance that the members of groups have in common; None where chance explains it.

    Each group holds deviations, members × steps × places. The share is the intraclass correlation, tested by Fisher's
    transformation.
    """
    if not groups:
        return None
    whole = sum(float(np.square(g).sum()) for g in groups)
    products = [float((np.square(g.sum(axis=0)) - np.square(g).sum(axis=0)).sum()) for g in groups]
    pairs = sum(product / (len(g) - 1) for product, g in zip(products, groups, strict=True))
    entries = sum(g[0].size for g in groups) - len(groups) - groups[0].shape[1]
    if whole <= 0 or entries < CORRELATION_ENTRIES:
        return None
    common = pairs / whole
    clear = np.arctanh(np.clip(common, -_ALL, _ALL)) * np.sqrt(entries - 3) - np.sqrt(2 * np.log(tests))
    return common if common >= MAJORITY and clear >= Z_LIMIT else None


_ALL = 0.999999
"""The largest share that is transformed: for a share of one the transformation is infinite."""


def _names(read: Read) -> Iterator[Kind]:
    """The kinds of kernels that at least one stage runs equally often, sorted."""
    yield from sorted({name for stage in read.stages for name in stage})


def _others_untouched(read: Read, share: dict[Kind, float]) -> bool:
    """Whether some kernels hardly vary while the kernels that follow the data do."""
    varies = {
        name: float(np.sqrt(np.mean([np.square(s.off_in_step).mean() for s in read.of(name)])))
        for name in _names(read)
    }
    least = min(varies[name] for name in share)
    return any(varies[name] <= MINOR * least for name in varies if name not in share)


def more_data_ns(case: Case, rows: Sequence[int]) -> F64:
    """Return the own time that the ranks in `rows` need beyond their peers' because more data reach them, ns.

    Shape (rows, steps); 0 where matrix products and attention are not most of what a rank runs more often, and on a
    CPU. It grows with the kernels, because the time between them does. What a rank runs more often in all steps alike
    does not count.
    """
    found = np.zeros((len(rows), len(case.steps.numbers)))
    for stage in case.stages:
        mine = np.flatnonzero(np.isin(rows, stage))
        chosen = sorted({*np.asarray(rows)[mine].tolist(), *sampled(stage.tolist())})
        on_gpus = all(case.on_gpu(row) for row in chosen)
        if len(mine) and len(chosen) > 1 and on_gpus:
            found[mine] = _beside_peers(case, chosen)[np.searchsorted(chosen, np.asarray(rows)[mine])]
    return found


def _beside_peers(case: Case, rows: Sequence[int]) -> F64:
    """The same for `rows` that do the same work, beside each other."""
    own = np.asarray(case.steps.own[list(rows)], np.float64)
    every, products = _counted_ns(case, rows)
    peers = [np.arange(len(rows))], np.flatnonzero(np.isin(rows, case.met.peers.usual))
    usual = usual_of_others(every, *peers)
    more = every - usual
    of_data = np.abs(products - usual_of_others(products, *peers)) >= MAJORITY * np.abs(more)
    share = np.nan_to_num(more / np.maximum(usual, 1.0) * usual_of_others(own, *peers))
    lasting = np.maximum(share.min(axis=1, keepdims=True), 0.0)
    return np.where(of_data, share - lasting, 0.0)


def _counted_ns(case: Case, rows: Sequence[int]) -> tuple[F64, F64]:
    """The compute of ranks in each step, and its products and attention, if each kernel takes the mean of its name; ns.

    Shape (rows, steps); NaN for a step that a rank lacks.
    """
    read = [case.kernels(row) for row in rows]
    codes: dict[str, int] = {}
    code = np.array([codes.setdefault(name, len(codes)) for k in read for name in k.name.tolist()], np.int64)
    lasted = np.concatenate([k.lasted for k in read] or [np.zeros(0)])
    typical = np.bincount(code, lasted, len(codes)) / np.maximum(np.bincount(code, minlength=len(codes)), 1)
    product = np.array([bool(MATMUL.search(name) or ATTENTION.search(name)) for name in codes], bool)
    many = len(case.steps.numbers)
    cell = np.concatenate([n * many + k.column for n, k in enumerate(read)] or [np.zeros(0, np.int64)])
    known = np.isfinite(case.steps.own[list(rows)])

    def summed(each: F64) -> F64:
        total = np.bincount(cell, each[code], len(rows) * many).reshape(len(rows), many)
        return np.asarray(np.where(known, total, np.nan), np.float64)

    return summed(typical), summed(np.where(product, typical, 0.0))


def more_data_price_ns(case: Case) -> float:
    """The most that more data cost which reach now one rank and now another, as counts of kernels show, ns a step.

    The longest rank of each step loses it. 0 unless the counts of ranks vary more than work does without data.
    """
    rows = sampled(max(case.stages, key=len), RANKS_SAMPLED).tolist()
    more = more_data_ns(case, rows)
    if variation(float(np.nanmedian(case.steps.own[rows])) + more) <= USUAL_VARIATION:
        return 0.0
    return case.steps.mean(more.max(axis=0))


def variation(values: F64) -> float:
    """Return the spread between ranks over their median, in the median step; `values` are ranks × steps.

    Robust against a single outlying rank.
    """
    middle = np.median(values, axis=0)
    off = MAD_TO_SIGMA * np.median(np.abs(values - middle), axis=0) / np.maximum(middle, 1.0)
    return float(np.sort(off)[(len(off) - 1) // 2])
