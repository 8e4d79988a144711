"""Whether the first step's loss weighs the model's outputs as the baseline's, by the gradients that it sends into them.

A local proof takes the gradient of the loss as recorded. Where both runs give the same outputs but for roundings, equal
losses send gradients that differ by roundings: another factor on some positions is another weight, and another gradient
is another loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose
from typing import Final

import torch

from numerics.comparison.proofs.aligned_outputs import Pair, Runs, aligned, pair_of
from numerics.comparison.proofs.position_weights import (
    SETTLED,
    other_loss_of_positions,
    positions_of,
    weighs_positions_otherwise,
)
from numerics.comparison.verdict import Case, Decision
from numerics.local.losses.loss_input import last_stage, loss_input
from numerics.local.records.recorded import RecordedRun
from numerics.schema import BESIDE
from numerics.thresholds.comparison import FACTOR_MARGIN
from numerics.thresholds.local import LOSS_SENSITIVITY, STATISTICS_APART, WEIGHT_TOLERANCE, WEIGHT_ULPS

_OWN_PART: Final = (
    "compute it over the sequences of all ranks and micro-batches, or compare runs that split the batch in the same "
    "way"
)


@dataclass(frozen=True)
class Weighed:
    """How the first step's loss weighs outputs beside the baseline's.

    `decision` says where it does so otherwise, None where nothing shows that; `certain` that this makes the gradients
    differ, whatever else does; `alike` that the records show every position to count as in the baseline.
    """

    decision: Decision | None = None
    certain: bool = False
    alike: bool = False


def weighed_beside(case: Case, step: int) -> Weighed:
    """Return how the loss of `step` weighs outputs beside the baseline's."""
    if case.baseline is None or case.apart is not None:
        return Weighed()
    runs = RecordedRun(case.run), RecordedRun(case.baseline)
    outputs = aligned(runs, step, loss_input(runs[0], step))
    if outputs is None or not bool(outputs.grads.other.any()):
        return Weighed()
    found = positions_of(outputs)
    otherwise = weighs_positions_otherwise(runs, step, outputs, found)
    if otherwise is not None:
        return Weighed(otherwise, certain=True)
    other = other_loss_of_positions(runs[0], step, outputs, found)
    if other is not None:
        return Weighed(other, certain=other.verdict == "bug")
    values, grads = outputs.values, outputs.grads
    factor = float((grads.mine * grads.other).sum() / grads.other.square().sum())
    beside = _beside(runs, step, factor, values.apart)
    return Weighed(beside, certain=beside is not None and beside.verdict == "bug", alike=found.alike)


def _total(runs: Runs, step: int, phase: str, kind: str, tensor: str) -> Pair | None:
    """Return the sums of what each place of both runs has of a number beside the output, 0 of nothing."""
    rows = [last_stage(side, side.rows(step, phase, kind, tensor)) for side in runs]
    mine, other = (_summed([side.local(row) for row in own]) for side, own in zip(runs, rows, strict=True))
    return None if mine is None or other is None else pair_of(tensor, mine, other)


def _summed(each: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    """Return the sum of tensors, 0 of none; None where a value was not kept."""
    known = [one for one in each if one is not None]
    if len(known) < len(each):
        return None
    return torch.stack(known).sum(0) if known else torch.zeros(1)


def _beside(runs: Runs, step: int, factor: float, apart: float) -> Decision | None:
    """Return the decision where a single number beside the output counts, or is, another than the baseline's.

    `factor` is what the baseline's gradient of the output is multiplied by in the run.
    """
    both = (set(side.names(step, "backward", "activation_grad")) for side in runs)
    for tensor in sorted(name for name in set.union(*both) if name.startswith(BESIDE)):
        value = _total(runs, step, "forward", "activation", tensor.removesuffix(".grad"))
        sent = _total(runs, step, "backward", "activation_grad", tensor)
        if value is None or sent is None or sent.mine.numel() != 1 or not factor:
            continue
        name = tensor.removeprefix(BESIDE).removesuffix(".grad")
        clause = f"in step {step} {name}, which the model leaves beside its output, counts"
        mine, other = float(sent.mine), float(sent.other) * factor
        if bool(mine) != bool(other):
            ends = ("the run's", "the baseline's") if mine else ("the baseline's", "the run's")
            return Decision("bug", "local", f"{clause} in {ends[0]} loss and not in {ends[1]}", SETTLED)
        level = max(FACTOR_MARGIN * max(WEIGHT_TOLERANCE, WEIGHT_ULPS * sent.unit), LOSS_SENSITIVITY * apart)
        if mine and abs(mine / other - 1) > level:
            many = _as_many(runs, step, mine / other, level)
            text = f"{clause} {mine / other:.4g} times as much in the loss as in the baseline{many}"
            return Decision("bug", "local", text, SETTLED)
        own = _of_own_part(runs, step, value, apart) if mine else ""
        if own:
            return Decision("undecided", "none", f"{name}, {own}", _OWN_PART)
    return None


def _of_own_part(runs: Runs, step: int, value: Pair, apart: float) -> str:
    """Return in words that a number beside the output is computed from each rank's own part of the batch; else ""."""
    parts = [len(last_stage(side, side.rows(step, "forward", "activation", value.tensor))) for side in runs]
    mine, other = float(value.mine) / parts[0], float(value.other) / parts[1]
    if abs(mine - other) <= max(STATISTICS_APART, LOSS_SENSITIVITY * apart) * max(abs(mine), abs(other)):
        return ""
    return (
        "which the model leaves beside its output and the loss counts, is computed from each rank's own part of the "
        f"batch: {mine:.4g} on average in step {step} where the baseline has {other:.4g}, from the same outputs: "
        "different by design, neither drift nor a bug"
    )


def _as_many(runs: Runs, step: int, times: float, level: float) -> str:
    """Return in words which size of a run the factor is, by which it divides the loss's other terms; else ""."""
    for whose, side, factor in (("", runs[0], times), ("the baseline's ", runs[1], 1 / times)):
        places = side.places(step)
        sizes = {
            "micro-batches": len({micro_batch for _, micro_batch in places}),
            "data-parallel ranks": len({index for index, _ in places}),
        }
        for name, size in sizes.items():
            if size > 1 and isclose(factor, size, rel_tol=level):
                return f", as many as {whose}{name}: it is not divided by their number as the other terms are"
    return ""
