"""Each class of kernel at the best rate in this job: the rank of a stage that runs it fastest sets the others' limit.

Ranks of a stage run the same shapes: a class is compared if its name runs equally often in every step of each rank, and
its sum over a step counts, so that shapes of one name weigh the same. A rank's rate is its median step.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.floor.work import RankWork
from tracekit.analysis.slowrank.case import Case
from tracekit.findings.floor import KernelClass
from tracekit.units import I64, ms


@dataclass(frozen=True)
class Best:
    """slow: by rank the time beyond the best in each of its steps, ns, at most regular compute. classes: compared."""

    slow: dict[int, I64]
    classes: tuple[KernelClass, ...]


def at_best(case: Case, works: Sequence[RankWork]) -> Best:
    """Return what ranks lose beside the best rate of each class; classes with the largest loss come first."""
    slow: dict[int, I64] = {}
    classes: list[KernelClass] = []
    for stage in sorted({case.mesh.stage(w.rank) for w in works}):
        mine = [w for w in works if case.mesh.stage(w.rank) == stage]
        beyond = {w.rank: np.zeros(len(w.columns), np.int64) for w in mine}
        names = _comparable(mine) if len(mine) > 1 else []
        classes += [_compared(name, stage, mine, beyond) for name in names]
        slow |= {w.rank: np.minimum(beyond[w.rank], w.regular) for w in mine}
    return Best(slow, tuple(sorted(classes, key=lambda c: (-c.lost_ms, c.stage, c.name))))


def _comparable(works: Sequence[RankWork]) -> list[str]:
    """Return the names that run equally often in every step of all `works`."""
    first = works[0]
    names = []
    for name, calls in first.calls.items():
        every = [w.calls.get(name) for w in works]
        if all(c is not None and (c == calls[0]).all() for c in every):
            names.append(name)
    return names


def _compared(name: str, stage: int, works: Sequence[RankWork], beyond: dict[int, I64]) -> KernelClass:
    """Return the class, and add to `beyond` what each rank loses on it in each step."""
    usual = {w.rank: int(np.median(w.spent[name])) for w in works}
    best = min(usual, key=lambda rank: (usual[rank], rank))
    for w in works:
        beyond[w.rank] += np.maximum(w.spent[name] - usual[best], 0)
    spent = np.concatenate([w.spent[name] for w in works])
    return KernelClass(
        name, stage, int(works[0].calls[name][0]), ms(float(spent.mean())), ms(usual[best]), best,
        ms(float(np.maximum(spent - usual[best], 0).mean())),
    )  # fmt: skip
