"""Differences by design if a batch is split differently: statistics over a batch, and buffers that each rank keeps.

Neither order of sums nor a bug makes such runs differ, so neither word is said: the verdict is `undecided`, and names
what computes over the batch, and the remedy. `watch(config={"layout": {"batch_statistics": "local"}})` declares that
each rank and micro-batch takes its own; the rest is then judged as in any other run.
"""

from collections import Counter
from typing import Final

import numpy as np
import torch

from numerics.columns import Columns
from numerics.comparison.joins.tensor_table import Status, TensorTable
from numerics.comparison.unequal_buffers import statistics_declared, unequal_buffers
from numerics.comparison.verdict import Case, Decision
from numerics.formats import least_roundoff
from numerics.local.evaluation_modes import modes_apart
from numerics.local.proof import LocalProof
from numerics.local.records.recorded import RecordedRun
from numerics.thresholds.local import STATISTICS_APART, STATISTICS_ULPS

_DECLARED: Final = 'watch(config={"layout": {"batch_statistics": "local"}})'
_REMEDY: Final = (
    "take statistics over all data-parallel ranks (torch.nn.SyncBatchNorm, an all-reduce of sums and counts) or none "
    "over the batch (GroupNorm, LayerNorm, frozen statistics), or compare runs that split the batch in the same way; "
    f"if the statistics are intended, declare them with {_DECLARED}"
)
_BUFFERS: Final = (
    "all-reduce or broadcast the buffers before they are saved (torch.nn.SyncBatchNorm keeps them equal); if the "
    f"difference is intended, declare it with {_DECLARED}"
)

_MODES: Final = (
    "call `model.eval()` in both runs or in neither; in a trainer, `model.train()` after each evaluation"
)


def differs_by_design(case: Case, proof: LocalProof) -> Decision | None:
    """Return the decision where modes differ, or where statistics over a batch or unequal buffers are not declared."""
    if case.baseline is not None:
        modes = modes_apart(RecordedRun(case.run), RecordedRun(case.baseline), proof.modal)
        if modes:
            return Decision("undecided", "none", f"{modes}: the two compute different functions", _MODES)
    if statistics_declared(case.run):
        return None
    apart = unequal_buffers(case.run)
    split = _split(case, proof)
    if split:
        words = f"{proof.statistics.words} computes statistics over the sequences of its batch, and {split}"
        text = f"{words}: different by design, neither drift nor a bug" + (f"; {apart}" if apart else "")
        return Decision("undecided", "none", text, _REMEDY)
    return Decision("undecided", "none", apart, _BUFFERS) if apart else None


def _split(case: Case, proof: LocalProof) -> str:
    """Return in words how the run, or the baseline, splits the batch that something computes over; else ""."""
    found = proof.statistics
    if not found.words:
        return ""
    mine = _places(case.run)
    if case.baseline is None:
        return _parts((1, mine[1]) if found.shared else mine)
    other = _places(case.baseline)
    if case.tensors is not None and found.tensor:
        apart = _apart(case.run, case.tensors, found.tensor)
        if apart is not None:
            return _beside(mine, other) if apart else ""
    alike = _sequences(case.run) == _sequences(case.baseline)
    return "" if alike else _beside(mine, other)


def _places(run: Columns) -> tuple[int, int]:
    """Return the number of data-parallel ranks, and of micro-batches."""
    steps = RecordedRun(run)
    places = steps.places(steps.steps[0]) if steps.steps else []
    return max(len({dp for dp, _ in places}), 1), max(len({number for _, number in places}), 1)


def _parts(places: tuple[int, int]) -> str:
    """Return that parts of a batch are computed over apart, in words; "" where there is one part."""
    ranks, numbers = places
    kinds = [f"data-parallel rank (of {ranks})"] * (ranks > 1) + [f"micro-batch (of {numbers})"] * (
        numbers > 1
    )
    return f"each {' and '.join(kinds)} takes its own part" if kinds else ""


def _beside(mine: tuple[int, int], other: tuple[int, int]) -> str:
    """Return how two runs split the batch, or that they take other parts of one that both split alike."""
    sides = [
        f"{ranks} data-parallel rank{'s' * (ranks > 1)} with {n} micro-batch{'es' * (n > 1)}"
        for ranks, n in (mine, other)
    ]
    if mine == other:
        return f"the run and the baseline take them over different parts, though both split the batch over {sides[0]}"
    return f"the run splits the batch differently from the baseline ({sides[0]} against {sides[1]})"


def _apart(run: Columns, tensors: TensorTable, name: str) -> bool | None:
    """Return whether the output that shows the statistics differs by more than roundings in the first step it has."""
    wanted = (
        run.named("tensor", name)[tensors.left] & (tensors.left >= 0) & (tensors.status != Status.UNMATCHED)
    )
    rows = np.flatnonzero(wanted & run.named("phase", "forward")[tensors.left])
    if not len(rows):
        return None
    first = rows[tensors.step[rows] == tensors.step[rows].min()]
    sizes = np.where(tensors.status[first] == Status.EQUAL, 0.0, tensors.relative[first])
    if not np.isfinite(sizes).all():
        return None
    unit = max(least_roundoff(run.name("dtype", int(tensors.left[n]))) for n in first)
    return bool(sizes.max() > max(STATISTICS_APART, STATISTICS_ULPS * unit))


def _sequences(run: Columns) -> Counter[tuple[tuple[str, bytes], ...]]:
    """Return what each place of the first step was given, as a set; only shapes of what is too large to read."""
    recorded = RecordedRun(run)
    step = next(iter(recorded.steps), 0)
    names = [name for name in recorded.names(step, "forward", "input") if name.startswith("in.")]
    found: Counter[tuple[tuple[str, bytes], ...]] = Counter()
    for place in recorded.places(step):
        given = [(name, recorded.input(step, name, place)) for name in names]
        found[tuple((name, _bytes(value)) for name, value in given)] += 1
    return found


def _bytes(value: torch.Tensor | None) -> bytes:
    return b"" if value is None else value.contiguous().view(torch.uint8).numpy().tobytes()
