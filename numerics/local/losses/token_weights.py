"""How much each position counts in the loss, read from the recorded outputs of the model and their gradients.

The gradient of a cross entropy with respect to a row of logits is w·(softmax(logits) - one_hot(label)): it gives the
row's label and its weight w in the loss, though neither labels nor masks were recorded. Rows that do not count have
no gradient. Where a gradient has not this form nothing is said.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from numerics.thresholds.local import (
    FIRM_ROW,
    LEAST_CLASSES,
    ROWS_AT_ONCE,
    WEIGHT_TOLERANCE,
    WEIGHT_ULPS,
)

Part = tuple[int, int, int]
"""Data-parallel index, micro-batch, and the number of the piece of its sequences that some of its ranks hold."""


@dataclass(frozen=True)
class Weights:
    """Weights of a place's positions, float64: 0 where one does not count, NaN where it counts and is not known.

    `precision` is the relative distance within which weights are equal.
    """

    rows: torch.Tensor
    precision: float

    @property
    def count(self) -> int:
        """How many positions count."""
        return int((self.rows != 0).sum())

    @property
    def typical(self) -> float:
        """The median weight of the positions that count."""
        return float(self.rows[self.rows.isfinite() & (self.rows != 0)].median())

    @property
    def alike(self) -> bool:
        """Whether all positions that count have one weight."""
        known = self.rows[self.rows.isfinite() & (self.rows != 0)]
        return bool(((known / self.typical - 1).abs() <= self.precision).all())


def weights_of(logits: torch.Tensor, grad: torch.Tensor) -> Weights | None:
    """Return the weights of the rows of logits by their gradient; None where that is no cross entropy's."""
    shape = logits.shape[:-1]
    logits, grad = read_classes(logits, grad)
    classes = logits.shape[-1] if logits.dim() > 1 and logits.shape == grad.shape else 0
    if classes < LEAST_CLASSES or not logits.is_floating_point():
        return None
    precision = max(WEIGHT_TOLERANCE, WEIGHT_ULPS * torch.finfo(grad.dtype).eps)
    chunk = max(ROWS_AT_ONCE // classes, 1)
    flat = zip(
        torch.split(logits.reshape(-1, classes), chunk),
        torch.split(grad.reshape(-1, classes), chunk),
        strict=True,
    )
    made = [_rows(a.double(), b.double(), precision) for a, b in flat]
    weights = torch.cat([w for w, _ in made]).reshape(shape)
    used, known = weights != 0, weights.isfinite() & (weights != 0)
    if any(not fits for _, fits in made) or int(known.sum()) * 2 < int(used.sum()):
        return None
    return Weights(weights, precision)


def read_classes(logits: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits and their gradient without the classes that no row reads, as in a padded vocabulary.

    All classes stay where no row counts, as in a micro-batch of padding.
    """
    if logits.dim() < 2 or logits.shape != grad.shape:
        return logits, grad
    read = (grad != 0).flatten(0, -2).any(0)
    return (logits[..., read], grad[..., read]) if bool(read.any()) else (logits, grad)


def reads_own_rows(logits: torch.Tensor, grad: torch.Tensor, precision: float) -> bool:
    """Return whether a gradient is that of a loss which reads one row and its label at a time.

    Each row is made of its softmax, a one for its label, and the same number for all classes: a cross entropy with
    smoothed labels, and a loss of its denominator, are. What is counted over several rows is not. `precision` is the
    relative distance within which a row has this form.
    """
    logits, grad = read_classes(logits, grad)
    classes = logits.shape[-1] if logits.dim() > 1 and logits.shape == grad.shape else 0
    if classes < LEAST_CLASSES:
        return False
    flat, sent = logits.reshape(-1, classes).double(), grad.reshape(-1, classes).double()
    rows = (sent.norm(dim=-1) > FIRM_ROW * sent.norm(dim=-1).max()).nonzero()[
        : max(ROWS_AT_ONCE // classes, 1), 0
    ]
    if not len(rows):
        return False
    flat, sent = flat[rows], sent[rows]
    label = torch.zeros_like(flat).scatter_(-1, sent.argmin(-1, keepdim=True), 1.0)
    form = torch.stack([flat.softmax(-1), label, torch.ones_like(flat)], -1)
    solved = torch.linalg.lstsq(form, sent[..., None]).solution
    misfit = ((form @ solved)[..., 0] - sent).norm(dim=-1) / sent.norm(dim=-1)
    return bool((misfit <= precision).all())


def _rows(logits: torch.Tensor, grad: torch.Tensor, precision: float) -> tuple[torch.Tensor, bool]:
    """Return the weights of rows, and whether all rows with a sufficiently uncertain label have the form."""
    used = grad.abs().amax(-1) > 0
    apart = logits.softmax(-1)
    label = grad.argmin(-1, keepdim=True)
    apart.scatter_add_(-1, label, torch.full_like(apart[..., :1], -1.0).expand_as(label))
    weights = (grad * apart).sum(-1) / apart.square().sum(-1)
    misfit = (grad - weights[..., None] * apart).norm(dim=-1) / grad.norm(dim=-1)
    firm = used & (apart.abs().amax(-1) > FIRM_ROW)
    fits = bool((misfit[firm] <= precision).all() & (weights[firm] > 0).all())
    return torch.where(used, torch.where(firm, weights, torch.nan), 0.0), fits


@dataclass(frozen=True)
class Unequal:
    """Positions of some parts count more than others'.

    `text` says so in words, `part` counts most. `mean` says over which parts the loss is a mean of means, and `axis`
    which axis of the mesh cuts these (None for micro-batches); "" where no such mean explains the weights.
    """

    text: str
    part: Part
    mean: str = ""
    axis: str | None = None


def unequal_shares(places: Mapping[Part, Weights]) -> Unequal | None:
    """Return where positions of some places count more than others'; None where all count alike."""
    precision = max(one.precision for one in places.values())
    typical = {place: one.typical for place, one in places.items()}
    most, least = max(typical.values()), min(typical.values())
    if most <= least * (1 + precision):
        return None
    high, low = (next(p for p, w in typical.items() if w == size) for size in (most, least))
    mean, axis = _mean_of_means(places, typical, precision)
    several = len({part for *_, part in places}) > 1
    where = [_where(part, several=several) for part in (high, low)]
    unequal = f"a position of {where[0]} counts {most / least:.4g} times as much as one of {where[1]}"
    text = f"the loss is {mean}: {unequal}" if mean else f"positions count unequally in the loss: {unequal}"
    return Unequal(text, high, mean, axis)


def _mean_of_means(
    places: Mapping[Part, Weights], typical: Mapping[Part, float], precision: float
) -> tuple[str, str | None]:
    """Return in words the means that the loss averages, and the axis that cuts them; "", None without such means.

    Each of these counts equally, though it has another number of positions.
    """
    for words, (part, axis) in _cuts(pieces=len({part for *_, part in places}) > 1).items():
        counts: dict[Part, int] = {}
        for place, one in places.items():
            counts[part(place)] = counts.get(part(place), 0) + one.count
        shares = [typical[p] * counts[part(p)] for p in places]
        if max(shares) <= min(shares) * (1 + precision) and len(counts) > 1:
            held = f"{min(counts.values())} to {max(counts.values())} positions"
            return f"a mean of the means over {words}, which hold {held}", axis
    return "", None


def _cuts(*, pieces: bool) -> dict[str, tuple[Callable[[Part], Part], str | None]]:
    """Return in words what a batch may be cut into, the part that a place belongs to, and the axis that cuts."""
    if not pieces:
        return {
            "data-parallel ranks": (lambda p: (p[0], -1, -1), "dp"),
            "micro-batches of each rank": (lambda p: p, None),
            "micro-batches over all ranks": (lambda p: (-1, p[1], -1), None),
        }
    piece = "of the sequences (context parallelism)"
    return {
        f"ranks that hold pieces {piece}": (lambda p: (p[0], -1, p[2]), "cp"),
        f"micro-batches of each rank that holds a piece {piece}": (lambda p: p, "cp"),
        "pieces of the sequences over all data-parallel ranks": (lambda p: (-1, -1, p[2]), "cp"),
        "data-parallel ranks": (lambda p: (p[0], -1, -1), "dp"),
        "micro-batches over all ranks": (lambda p: (-1, p[1], -1), None),
        "micro-batches of each data-parallel rank": (lambda p: (p[0], p[1], -1), None),
    }


def _where(part: Part, *, several: bool) -> str:
    piece = f", piece {part[2]} of its sequences" if several else ""
    return f"data-parallel rank {part[0]}, micro-batch {part[1]}{piece}"


def divisor(places: Mapping[Any, Weights], factors: Sequence[float]) -> str:
    """Return in words that the loss is divided by all positions though some do not count; else "".

    `factors` are factors that the trainer may apply to gradients afterwards (averages over ranks); the factor that
    makes the weights add up to 1 shows a mean over the positions that count.
    """
    counted = sum(one.count for one in places.values())
    every = sum(one.rows.numel() for one in places.values())
    precision = max(one.precision for one in places.values())
    total = sum(one.typical * one.count for one in places.values())
    sums = [total * factor for factor in factors]
    if counted == every or any(abs(one - 1) <= precision for one in sums):
        return ""
    if any(abs(one * every / counted - 1) <= precision for one in sums):
        return f"the loss is divided by all {every} positions, though {counted} of them count"
    return ""


def masked_positions(weights: Weights, mask: torch.Tensor) -> int:
    """Return how many positions count that an attention mask leaves out, but one at the border of each sequence.

    The position before the first word of a sequence padded on the left may count: it predicts that word.
    """
    if mask.shape != weights.rows.shape or mask.dim() < 2 or bool(((mask != 0) & (mask != 1)).any()):
        return 0
    out = ((mask == 0) & (weights.rows != 0)).sum(-1)
    return int((out - 1).clamp_min(0).sum())
