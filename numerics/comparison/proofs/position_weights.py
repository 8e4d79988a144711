"""How much each position counts in the first step's loss beside the baseline's, and which of the two divides otherwise.

Both runs give the same outputs, so that equal losses send equal gradients into them. Where the gradients of positions
are multiples of the baseline's, and not all of one factor, the loss weighs positions otherwise: by each rank's own
count of tokens, or without a mask. Neither labels nor the form of the loss need be known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import torch

from numerics.columns import Columns
from numerics.comparison.proofs.aligned_outputs import Aligned, Runs
from numerics.comparison.verdict import Decision
from numerics.findings import Divergence
from numerics.local.losses.loss_weights import parts_of
from numerics.local.losses.token_weights import (
    Part,
    Unequal,
    Weights,
    reads_own_rows,
    unequal_shares,
)
from numerics.local.records.recorded import RecordedRun
from numerics.thresholds.comparison import FACTOR_MARGIN, NO_DIVISOR
from numerics.thresholds.local import FAINT_ROW, LOSS_SCALE, LOSS_SENSITIVITY, WEIGHT_TOLERANCE, WEIGHT_ULPS

SETTLED: Final = (
    "divide each rank's loss by what all ranks count (tokens, weights), and give every term of the loss the baseline's "
    "coefficient; where the difference is intended, compare with a baseline that has it too"
)
_IN_PARTS: Final = (
    "; ranks hold parts of the classes: sums, maxima and means of a row must be taken over all parts"
)
_BESIDE: Final = "measured by the baseline, which has the same outputs"


@dataclass(frozen=True)
class Positions:
    """What each position of the global batch counts in the run, in units of the baseline's; NaN where not known.

    `mine` and `other` say where it counts at all in the run and in the baseline, `more` and `less` where it does so
    surely in that one alone. `level` is the distance within which factors are one.
    """

    factors: torch.Tensor
    mine: torch.Tensor
    other: torch.Tensor
    more: torch.Tensor
    less: torch.Tensor
    level: float

    @property
    def usual(self) -> float:
        """The median factor; 0 where none is known."""
        known = self.factors[self.factors.isfinite()]
        return float(known.median()) if known.numel() else 0.0

    @property
    def alike(self) -> bool:
        """Whether all positions are known to count by one factor."""
        apart = (self.factors[self.factors.isfinite()] / self.usual - 1).abs() if self.usual > 0 else None
        same = bool(torch.equal(self.mine, self.other)) and self.level < 1
        return same and apart is not None and bool((apart <= FACTOR_MARGIN * self.level).all())


def positions_of(outputs: Aligned) -> Positions:
    """Return what positions count, by the gradients of both losses with respect to one output."""
    values, grads = outputs.values, outputs.grads
    width = grads.mine.shape[-1] if grads.mine.dim() > 1 else 1
    shape = grads.mine.shape[: grads.mine.dim() - (width > 1)]
    mine, other = (one.reshape(-1, width) for one in (grads.mine, grads.other))
    sizes = [one.square().sum(-1) for one in (mine, other)]
    counts = [size > 0 for size in sizes]
    firm = [size > FAINT_ROW**2 * size.max() for size in sizes]
    factors = (mine * other).sum(-1) / sizes[1].clamp_min(NO_DIVISOR)
    factors = torch.where(firm[1] & counts[0], factors, torch.nan)
    level = max(WEIGHT_TOLERANCE, WEIGHT_ULPS * grads.unit, LOSS_SENSITIVITY * values.apart)
    more, less = firm[0] & ~counts[1], firm[1] & ~counts[0]
    found = [one.reshape(shape) for one in (factors, *counts, more, less)]
    return Positions(found[0], found[1], found[2], found[3], found[4], level)


def weighs_positions_otherwise(runs: Runs, step: int, outputs: Aligned, found: Positions) -> Decision | None:
    """Return the decision where a run's loss weighs positions otherwise than its baseline's; None where it does not.

    `outputs` are outputs of both runs that the loss reads, `found` is what their positions count.
    """
    if found.level >= 1 or found.usual <= 0:
        return None
    alone = _alone(runs[0], step, outputs, found)
    if alone is not None:
        return alone
    rows = torch.where(found.mine, found.factors, 0.0)
    mine = _unequal(runs[0], step, {at: rows[list(held)] for at, held in outputs.rows.items()}, found.level)
    rows = torch.where(found.other, 1 / found.factors, 0.0)
    other = _unequal(
        runs[1], step, {at: rows[list(held)] for at, held in outputs.others.items()}, found.level
    )
    if other is not None and (mine is None or (other.mean and not mine.mean)):
        text = (
            f"in step {step} of the baseline, {other.text}, measured by the run, which has the same outputs"
        )
        folder = runs[1].run.capture.folder
        decide = f"numerics compare --model FILE.py:FUNCTION --parallel {folder}"
        return Decision("undecided", "none", text, decide)
    if mine is not None:
        where = _place(runs[0], step, outputs.grads.tensor, mine.part, mine.axis)
        return Decision("bug", "local", f"in step {step}, {mine.text}, {_BESIDE}", SETTLED, where)
    return None


def _alone(run: RecordedRun, step: int, outputs: Aligned, found: Positions) -> Decision | None:
    """Return the bug that positions count in the loss of one run alone; None where the same ones do."""
    more, less = int(found.more.sum()), int(found.less.sum())
    if not more and not less:
        return None
    ends = ("the run's", "the baseline's") if more else ("the baseline's", "the run's")
    marked = found.more if more else found.less
    first = next(place for place, held in outputs.rows.items() if bool(marked[list(held)].any()))
    text = (
        f"in step {step}, {more or less} of {marked.numel()} positions count in {ends[0]} loss and not in {ends[1]}, "
        f"the first of them of data-parallel rank {first[0]}, micro-batch {first[1]}: other labels are left out "
        "(ignored labels, padding, a mask)"
    )
    where = _place(run, step, outputs.grads.tensor, (*first, 0), None)
    apart = _holders(outputs, torch.where(marked[..., None], outputs.grads.mine, 0.0), 0.0) if more else ()
    if apart:
        return Decision(
            "bug", "local", f"{text}{_alone_in(apart)}", SETTLED, replace(where, axis="tp", ranks=apart)
        )
    return Decision("bug", "local", text, SETTLED, where)


def other_loss_of_positions(
    run: RecordedRun, step: int, outputs: Aligned, found: Positions
) -> Decision | None:
    """Return the decision where gradients of positions are no multiple of the baseline's; None where they are.

    It is open where the baseline's loss may count over several positions, which parts of a batch do apart by design.
    """
    if found.level >= 1 or found.usual <= 0:
        return None
    values, grads = outputs.values, outputs.grads
    away = grads.mine - found.usual * grads.other
    size = float(away.norm() / grads.mine.norm())
    own = reads_own_rows(values.other, grads.other, max(WEIGHT_TOLERANCE, WEIGHT_ULPS * grads.unit))
    if size <= max(0.0 if own else LOSS_SCALE, FACTOR_MARGIN * found.level):
        return None
    times = "" if abs(found.usual - 1) <= found.level else f"{found.usual:.4g} times "
    text = (
        f"the gradient that the loss of step {step} sends into the model's output is {size:.2g} of its norm apart from "
        f"{times}the baseline's, though the outputs agree to {values.apart:.1g}: the losses differ"
    )
    if not own:
        return Decision("undecided", "none", text, SETTLED)
    where = _place(run, step, grads.tensor, (*next(iter(outputs.rows)), 0), None)
    text, alone = _with_classes(text, outputs)
    least = FACTOR_MARGIN * found.level * float(grads.mine.norm())
    apart = _holders(outputs, away if alone is None else away * alone, least)
    if apart:
        return Decision(
            "bug", "local", f"{text}{_alone_in(apart)}", SETTLED, replace(where, axis="tp", ranks=apart)
        )
    return Decision("bug", "local", f"{text}{_IN_PARTS if outputs.columns else ''}", SETTLED, where)


def _with_classes(text: str, outputs: Aligned) -> tuple[str, torch.Tensor | None]:
    """Return a sentence with the classes that count in the loss of one run alone, and a mask of these; else None."""
    mine, other = ((one != 0).flatten(0, -2).any(0) for one in (outputs.grads.mine, outputs.grads.other))
    more, less = mine & ~other, other & ~mine
    alone = more if bool(more.any()) else less
    if not bool(alone.any()):
        return text, None
    ends = ("the run's", "the baseline's") if bool(more.any()) else ("the baseline's", "the run's")
    at = alone.nonzero()[:, 0].tolist()
    which = f"{len(at)} of {len(alone)} classes (from {at[0]} to {at[-1]})"
    return (
        f"{text}; {which} count in {ends[0]} loss and not in {ends[1]}, as rows that pad a vocabulary",
        alone,
    )


def _holders(outputs: Aligned, values: torch.Tensor, least: float) -> tuple[int, ...]:
    """Return the ranks with the parts of the classes in which alone values are larger than `least`; none if in all."""
    held = {rank: float(values[..., start:end].norm()) for rank, (start, end) in outputs.columns.items()}
    found = tuple(sorted(rank for rank, size in held.items() if size > least))
    return found if len(found) < len(held) else ()


def _alone_in(ranks: tuple[int, ...]) -> str:
    return f", in the classes of rank {', '.join(map(str, ranks))} alone"


def _unequal(
    side: RecordedRun, step: int, places: Mapping[tuple[int, int], torch.Tensor], level: float
) -> Unequal | None:
    """Return where positions of some parts of a run's batch count more, beyond what they vary by within a part."""
    parts: dict[Part, Weights] = {}
    for place, one in places.items():
        parts |= dict(parts_of(side, step, place, Weights(one, level)))
    counted = {part: one for part, one in parts.items() if one.count}
    held = [one.rows[one.rows != 0] for one in counted.values()]
    if len(counted) < 2 or not all(bool(rows.isfinite().any()) for rows in held):
        return None
    known = {part: one.rows[one.rows.isfinite() & (one.rows != 0)] for part, one in counted.items()}
    inner = max(float((one / counted[part].typical - 1).abs().median()) for part, one in known.items())
    precision = FACTOR_MARGIN * max(level, inner)
    return unequal_shares({part: replace(one, precision=precision) for part, one in counted.items()})


def _place(run: RecordedRun, step: int, tensor: str, part: Part, axis: str | None) -> Divergence:
    """Return the place of a gradient of the output in a run."""
    columns: Columns = run.run
    rows = run.of_place(run.rows(step, "backward", "activation_grad", tensor), part[:2])
    return Divergence(
        step=step,
        phase="backward",
        micro_batch=part[1],
        module=columns.name("module", rows[0]) if rows else "",
        tensor=tensor,
        collective=None,
        axis=axis,
        ranks=tuple(sorted({int(columns["rank"][row]) for row in rows})),
        evidence="its rows beside the baseline's",
    )
