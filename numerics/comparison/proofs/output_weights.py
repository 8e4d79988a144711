"""Whether the first step's loss weighs the model's outputs as the baseline's, by the gradients that it sends into them.

A local proof takes the gradient of the loss as recorded. Where both runs give the same outputs but for roundings, equal
losses send gradients that differ by roundings: another factor on some positions is another weight, and another gradient
is another loss.
"""

from dataclasses import dataclass
from typing import Final

import torch

from numerics.columns import Columns
from numerics.comparison.verdict import Case, Decision
from numerics.local.forced_pass import ROOT, ROOT_GRADIENT
from numerics.local.records.recorded import RecordedRun
from numerics.schema import BESIDE, parse_boxes
from numerics.thresholds.comparison import FACTOR_MARGIN, NO_DIVISOR
from numerics.thresholds.local import (
    FAINT_ROW,
    LOSS_SCALE,
    LOSS_SENSITIVITY,
    STATISTICS_APART,
    WEIGHT_TOLERANCE,
    WEIGHT_ULPS,
)

_SETTLED: Final = (
    "divide each rank's loss by what all ranks count (tokens, weights), and give every term of the loss the baseline's "
    "coefficient; where the difference is intended, compare with a baseline that has it too"
)
_OWN_PART: Final = (
    "compute it over the sequences of all ranks and micro-batches, or compare runs that split the batch in the same "
    "way"
)


@dataclass(frozen=True)
class _Pair:
    """An output or its gradient in the run and in the baseline, float64, and the roundoff of the coarser format."""

    mine: torch.Tensor
    other: torch.Tensor
    unit: float

    @property
    def apart(self) -> float:
        """The norm of the difference over the run's, or the largest difference if that is more."""
        away = self.mine - self.other
        size = float(self.mine.norm())
        return max(float(away.norm()) / size if size else 0.0, float(away.abs().max()))


def weighs_otherwise(case: Case, step: int) -> Decision | None:
    """Return the open decision where the loss of `step` weighs outputs otherwise than the baseline's; None else."""
    if case.baseline is None or case.apart is not None:
        return None
    runs = RecordedRun(case.run), RecordedRun(case.baseline)
    values, grads = _pair(runs, step, "forward", ROOT), _pair(runs, step, "backward", ROOT_GRADIENT)
    if grads is None or values is None or not bool(grads.other.any()):
        return None
    if grads.mine.dim():
        text = _positions(runs[0], step, values, grads)
        if text:
            return Decision("undecided", "none", text, _SETTLED)
    factor = float((grads.mine * grads.other).sum() / grads.other.square().sum())
    return _beside(runs, step, factor, values.apart)


def _pair(
    runs: tuple[RecordedRun, RecordedRun], step: int, phase: str, tensor: str, *, total: bool = False
) -> _Pair | None:
    """Return a tensor of both runs: whole, or (`total`) the sum of what each place has."""
    found = []
    for side in runs:
        kind = "activation" if phase == "forward" else "activation_grad"
        rows = _last_stage(side.run, side.rows(step, phase, kind, tensor))
        if total:
            each = [side.local(row) for row in rows]
            tensors = [one for one in each if one is not None]
            whole = torch.stack(tensors).sum(0) if tensors and len(tensors) == len(each) else None
        else:
            readings = side.whole(rows, None, batch=True) if rows else []
            whole = readings[0].tensor if len(readings) == 1 and not readings[0].how else None
        if whole is None or not whole.is_floating_point():
            return None
        found.append(whole)
    if found[0].shape != found[1].shape:
        return None
    unit = max(float(torch.finfo(one.dtype).eps) for one in found)
    pair = _Pair(found[0].double(), found[1].double(), unit)
    return pair if bool(pair.mine.isfinite().all() and pair.other.isfinite().all()) else None


def _last_stage(run: Columns, rows: list[int]) -> list[int]:
    """Return the rows of the last stage of a pipeline: each stage calls a model of its own."""
    last = max((int(run["pp"][row]) for row in rows), default=0)
    return [row for row in rows if int(run["pp"][row]) == last]


def _positions(run: RecordedRun, step: int, values: _Pair, grads: _Pair) -> str:
    """Return in words that positions count otherwise than in the baseline, or that the loss is another; else ""."""
    width = grads.mine.shape[-1] if grads.mine.dim() > 1 else 1
    mine, other = (one.reshape(-1, width) for one in (grads.mine, grads.other))
    size = other.square().sum(-1)
    firm = size > FAINT_ROW**2 * size.max()
    factors = torch.where(firm, (mine * other).sum(-1) / size.clamp_min(NO_DIVISOR), torch.nan)
    usual = float(factors[firm].median())
    if usual <= 0:
        return ""
    level = max(WEIGHT_TOLERANCE, WEIGHT_ULPS * grads.unit, LOSS_SENSITIVITY * values.apart)
    shape = grads.mine.shape[: grads.mine.dim() - (width > 1)]
    unequal = _unequal(_by_place(run, step, factors.reshape(shape)), level)
    if unequal:
        return (
            f"in step {step} {unequal}, measured by the baseline, which has the same outputs: each divides the loss by "
            "its own count (of tokens, or weights)"
        )
    away = float((grads.mine - usual * grads.other).norm() / grads.mine.norm())
    if away <= max(LOSS_SCALE, FACTOR_MARGIN * level):
        return ""
    times = "" if abs(usual - 1) <= level else f"{usual:.4g} times "
    return (
        f"the gradient that the loss of step {step} sends into the model's output is {away:.2g} of its norm apart from "
        f"{times}the baseline's, though the outputs agree to {values.apart:.1g}: the losses differ"
    )


def _unequal(by_place: dict[tuple[int, int], torch.Tensor], level: float) -> str:
    """Return in words in what places a position counts most and least by its factor; "" where all count alike."""
    known = {place: one[one.isfinite()] for place, one in by_place.items()}
    typical = {place: float(one.median()) for place, one in known.items() if one.numel()}
    if len(typical) < 2 or min(typical.values()) <= 0:
        return ""
    inner = max(float((known[place] / middle - 1).abs().median()) for place, middle in typical.items())
    high, low = max(typical, key=typical.__getitem__), min(typical, key=typical.__getitem__)
    times = typical[high] / typical[low]
    if times <= 1 + FACTOR_MARGIN * max(level, inner):
        return ""
    return f"a position of {_where(high)} counts {times:.4g} times as much as one of {_where(low)}"


def _by_place(run: RecordedRun, step: int, factors: torch.Tensor) -> dict[tuple[int, int], torch.Tensor]:
    """Return the factors of each place's sequences, which lie along dimension 0 in the order of their boxes."""
    rows = _last_stage(run.run, run.rows(step, "backward", "activation_grad", ROOT_GRADIENT))
    held: dict[tuple[int, int], tuple[int, int]] = {}
    for place in run.places(step):
        boxes = [
            box
            for row in run.of_place(rows, place)
            for box in parse_boxes(run.run.name("boxes", row) or "")
            if box.sizes
        ]
        if boxes:
            held[place] = min(b.offsets[0] for b in boxes), max(b.offsets[0] + b.sizes[0] for b in boxes)
    found, start = {}, 0
    for place, (first, end) in sorted(held.items(), key=lambda item: item[1]):
        found[place] = factors[start : start + end - first]
        start += end - first
    return found if start == len(factors) else {}


def _where(place: tuple[int, int]) -> str:
    return f"data-parallel rank {place[0]}, micro-batch {place[1]}"


def _beside(runs: tuple[RecordedRun, RecordedRun], step: int, factor: float, apart: float) -> Decision | None:
    """Return the open decision where a single number beside the output counts, or is, another than the baseline's.

    `factor` is what the baseline's gradient of the output is multiplied by in the run.
    """
    names = [n for n in runs[0].names(step, "backward", "activation_grad") if n.startswith(BESIDE)]
    for tensor in names:
        sent = _pair(runs, step, "backward", tensor, total=True)
        value = _pair(runs, step, "forward", tensor.removesuffix(".grad"), total=True)
        if sent is None or value is None or sent.mine.numel() != 1 or not float(sent.other) or not factor:
            continue
        level = FACTOR_MARGIN * max(WEIGHT_TOLERANCE, WEIGHT_ULPS * sent.unit)
        name, times = (
            tensor.removeprefix(BESIDE).removesuffix(".grad"),
            float(sent.mine / sent.other) / factor,
        )
        if abs(times - 1) > level:
            text = (
                f"in step {step} {name}, which the model leaves beside its output, counts {times:.4g} times as much in "
                "the loss as in the baseline"
            )
            return Decision("undecided", "none", text, _SETTLED)
        parts = [
            len(_last_stage(side.run, side.rows(step, "forward", "activation", tensor.removesuffix(".grad"))))
            for side in runs
        ]
        mine, other = float(value.mine) / parts[0], float(value.other) / parts[1]
        if abs(mine - other) > max(STATISTICS_APART, LOSS_SENSITIVITY * apart) * max(abs(mine), abs(other)):
            text = (
                f"{name}, which the model leaves beside its output and the loss counts, is computed from each rank's "
                f"own part of the batch: {mine:.4g} on average in step {step} where the baseline has {other:.4g}, from "
                "the same outputs: different by design, neither drift nor a bug"
            )
            return Decision("undecided", "none", text, _OWN_PART)
    return None
