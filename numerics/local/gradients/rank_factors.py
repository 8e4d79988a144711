"""What ranks make of the one gradient that all share: unequal copies, a factor of each rank's own, a share of each.

A clip by a rank's own norm multiplies all gradients that the rank holds, shards and copies, by one factor; a clip
before the reduction multiplies what the rank adds to all of them. One gradient alone looks like something else.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import isclose

import torch

from numerics.local.bounds.bounded import unit
from numerics.local.gradients.learned_orders import LearnedOrders
from numerics.local.gradients.parameter_gradients import Scale, Sum, judge_gradient, share_held
from numerics.local.judgement import Judged, Standing, ratio, within
from numerics.local.recorded_step import RecordedStep
from numerics.local.records.optimizer_shares import is_share
from numerics.local.records.recorded import RecordedRun
from numerics.schema import parse_boxes, parse_shape
from numerics.thresholds.comparison import LEAST_FITTED, MAX_FITTED_NUMBERS
from numerics.thresholds.local import FUNCTION_ROUNDINGS, LEAST_SHARE, SCALE_TOLERANCE

Copies = Sequence[tuple[tuple[int, ...], torch.Tensor]]
"""The ranks that hold each copy, and the copy."""

Pick = Callable[[torch.Tensor], torch.Tensor]
"""Maps a whole tensor to the elements that a rank holds, flat."""


def judge_copies(
    copies: Copies, total: Sum, scale: Scale, learned: LearnedOrders
) -> tuple[Judged, tuple[int, ...]]:
    """Return the judgement of unequal copies of a gradient by the scaled sum, and the ranks of the wrong copies.

    The judgement is that of the first wrong copy; if all copies are right within rounding, that of the worst.
    """
    judged = [judge_gradient(copy, total, scale, learned) for _, copy in copies]
    wrong = [n for n, one in enumerate(judged) if one.standing == Standing.BEYOND]
    if not wrong:
        return max(judged, key=lambda one: one.standing), ()
    ranks = tuple(sorted(rank for n in wrong for rank in copies[n][0]))
    return replace(
        judged[wrong[0]], how=_of_copies(copies, judged, total, scale), lone="", factors=None
    ), ranks


def _of_copies(copies: Copies, judged: Sequence[Judged], total: Sum, scale: Scale) -> str:
    """Say what the copies are; empty where no one relation holds for all that are wrong."""
    if copies[0][1].numel() < LEAST_FITTED:
        return ""
    own = [share_held(copy, total, scale) for _, copy in copies]
    if len(copies) > 1 and None not in own and len(set(own)) == len(copies):
        return "it was not reduced: each data-parallel rank holds its own share"
    said = []
    right = next(
        (c for (_, c), one in zip(copies, judged, strict=True) if one.standing != Standing.BEYOND), None
    )
    for ranks, copy in copies:
        limit = copy.abs().max()
        many = int((copy.abs() == limit).sum()) >= LEAST_FITTED
        if many and right is not None and torch.equal(copy, right.clamp(-limit, limit)):
            whose = ", ".join(str(rank) for rank in ranks)
            return f"rank {whose} clips its copy by value, at {float(limit):.6g}, and its peers do not"
    for (ranks, _), one in zip(copies, judged, strict=True):
        if one.standing != Standing.BEYOND:
            continue
        if one.factors is None or one.ratio is None:
            return ""
        whose = ", ".join(str(rank) for rank in ranks)
        said.append(f"rank {whose} {one.ratio:.6g} times")
    return f"its copies are unequal multiples of the right value: {'; '.join(said)}"


def factors_by_rank(state: RecordedStep, sums: Mapping[str, Sum]) -> tuple[str, tuple[int, ...]]:
    """Return in words by which factor each rank's gradients are their sums, and the ranks of the odd ones; else "", ().

    Every gradient that a rank holds must be the rank's factor times the sum over micro-batches and data-parallel ranks
    within rounding, and the ranks' factors must differ.
    """
    held = _held(state, sums)
    factors = {rank: factor for rank, own in held.items() if (factor := _factor(own)) is not None}
    apart = factors and max(factors.values()) - min(factors.values()) > SCALE_TOLERANCE * max(
        factors.values()
    )
    if len(factors) < max(len(held), 2) or not apart:
        return "", ()
    norms = {
        rank: float(torch.cat([grad for grad, _, _ in own]).double().norm()) for rank, own in held.items()
    }
    said = "; ".join(f"rank {rank} {factor:.6g}" for rank, factor in sorted(factors.items()))
    alike = [
        [r for r in factors if isclose(factors[r], f, rel_tol=SCALE_TOLERANCE)] for f in factors.values()
    ]
    most = max(alike, key=len)
    odd = tuple(sorted(set(factors) - set(most))) if 2 * len(most) > len(factors) else tuple(sorted(factors))
    each = f"each rank multiplies all its gradients by a factor of its own ({said} times their sum)"
    largest = max(factors.values())
    clipped = [norms[r] for r, f in factors.items() if f < largest * (1 - SCALE_TOLERANCE)]
    kept = [norms[r] for r, f in factors.items() if f >= largest * (1 - SCALE_TOLERANCE)]
    limit = clipped[0]
    own_norm = all(isclose(norm, limit, rel_tol=SCALE_TOLERANCE) for norm in clipped) and all(
        norm <= limit * (1 + SCALE_TOLERANCE) for norm in kept
    )
    if own_norm and len(set(map(len, held.values()))) == 1 and not _whole_copies(state, sums):
        return f"{each}: a clip by each rank's own norm, which is {limit:.6g} after it", tuple(
            sorted(factors)
        )
    how = "a clip by each rank's own norm" if own_norm else "a clip by a limit, or a norm, of its own"
    left = f"after it their norms are {', '.join(f'{norms[rank]:.6g}' for rank in sorted(norms))}"
    return f"{each}: {how}; {left}", odd


def factors_of_shares(recorded: Mapping[str, torch.Tensor], sums: Mapping[str, Sum], scale: Scale) -> str:
    """Return in words by which factor each data-parallel rank's share counts in all gradients alike; else "".

    `recorded` are the reduced gradients. Every one must be the sum of the shares by these factors within rounding.
    """
    ranks = sorted({place[0] for total in sums.values() for place in total.value})
    if len(ranks) < 2:
        return ""
    shares = {
        name: [_share(total, rank) for rank in ranks] for name, total in sums.items() if name in recorded
    }
    matrix = torch.cat([torch.stack([s.reshape(-1) for s in own], 1) for own in shares.values()])
    wanted = torch.cat([recorded[name].double().reshape(-1) for name in shares])
    thin = max(1, len(wanted) // MAX_FITTED_NUMBERS)
    solved = torch.linalg.lstsq(matrix[::thin], wanted[::thin, None], driver="gelsd")
    weights = solved.solution[:, 0].tolist()
    largest = max(map(abs, weights))
    if int(solved.rank) < len(ranks) or not largest > 0 or min(weights) <= LEAST_SHARE * largest:
        return ""
    if max(weights) - min(weights) <= SCALE_TOLERANCE * largest:
        return ""
    for name, own in shares.items():
        made = torch.stack([w * s for w, s in zip(weights, own, strict=True)]).sum(0)
        error = (
            largest * _error(sums[name], recorded[name].dtype)
            + SCALE_TOLERANCE**2 * largest * sums[name].size
        )
        if within(made, error, recorded[name]).standing == Standing.BEYOND:
            return ""
    norms = [
        w * float(torch.cat([own[n].reshape(-1) for own in shares.values()]).norm())
        for n, w in enumerate(weights)
    ]
    said = "; ".join(f"rank {r} {w / scale.factor:.6g}" for r, w in zip(ranks, weights, strict=True))
    each = f"each data-parallel rank's share counts by a factor of its own in all gradients ({said} times)"
    equal = isclose(max(norms), min(norms), rel_tol=SCALE_TOLERANCE)
    return f"{each}: {'a clip by its own norm' if equal else 'clipped, or divided, by itself'} before the reduction"


def _share(total: Sum, rank: int) -> torch.Tensor:
    own = [value for place, value in total.value.items() if place[0] == rank]
    return torch.stack(own).sum(0) if own else torch.zeros_like(total.total)


def _error(total: Sum, dtype: torch.dtype) -> torch.Tensor:
    """Return what rounding may move a sum by: the addends' own errors, and those of adding them in `dtype`."""
    adding = (len(total.value) + FUNCTION_ROUNDINGS) * unit(dtype) * total.size
    return torch.stack(list(total.error.values())).sum(0) + adding


def _held(
    state: RecordedStep, sums: Mapping[str, Sum]
) -> dict[int, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]]:
    """Return by rank the gradients that it holds, flat, with the sums of these elements and their errors."""
    recorded = state.recorded
    found: dict[int, list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = {}
    for name, total in sums.items():
        rows = recorded.rows(state.step, "reduce", "param_grad", f"{name}.grad")
        for row, pick in _pieces(recorded, rows, tuple(total.total.shape)):
            grad = recorded.local(row)
            right = pick(total.total)
            if grad is None or right.numel() != grad.numel():
                return {}
            own = found.setdefault(int(recorded.run["rank"][row]), [])
            own.append((grad, right, pick(_error(total, grad.dtype))))
    return found


def _pieces(recorded: RecordedRun, rows: Sequence[int], shape: tuple[int, ...]) -> list[tuple[int, Pick]]:
    """Return rows with what picks a rank's elements out of the whole: by boxes, or in the order of unplaced parts."""
    if not rows:
        return []
    run = recorded.run
    boxes = {row: parse_boxes(run.name("boxes", row) or "") for row in rows}

    def boxed(row: int) -> Pick:
        def pick(whole: torch.Tensor) -> torch.Tensor:
            parts = [
                whole[tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))].reshape(-1)
                for box in boxes[row]
            ]
            return torch.cat(parts) if parts else whole.reshape(-1)[:0]

        return pick if shape else lambda whole: whole.reshape(-1)

    whole = {row for row in rows if parse_shape(run.name("global_shape", row)) == shape}
    loose = [row for row in rows if recorded.unplaced(row) and boxes[row] and row not in whole]
    if any(is_share(run, row) for row in loose):
        return []
    if not loose:
        return [(row, boxed(row)) for row in rows]
    found: list[tuple[int, Pick]] = []
    for index in sorted({int(run["dp"][row]) for row in loose}):
        own = [row for row in loose if int(run["dp"][row]) == index]
        own.sort(key=lambda r: tuple(int(run[c][r]) for c in ("pp", "cp", "tp", "rank")))
        sizes = [boxes[row][0].sizes for row in own]
        dims = [
            d
            for d in range(len(shape))
            if len(sizes[0]) == len(shape) and sum(s[d] for s in sizes) == shape[d]
        ]
        if len(dims) != 1:
            return []
        start, dim = 0, dims[0]
        for row, size in zip(own, sizes, strict=True):
            found.append((row, _narrowed(dim, start, size[dim])))
            start += size[dim]
    return found


def _narrowed(dim: int, start: int, length: int) -> Pick:
    return lambda whole: whole.narrow(dim, start, length).reshape(-1)


def _factor(own: Sequence[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]) -> float | None:
    """Return the factor of all gradients of one rank; None where they have no one factor."""
    grad = torch.cat([one for one, _, _ in own]).double()
    right, error = (torch.cat([one[n] for one in own]) for n in (1, 2))
    factor = ratio(grad, right)
    if factor is None or not factor > 0 or grad.numel() < LEAST_FITTED:
        return None
    largest = own[0][0].dtype
    fits = within(
        factor * right, factor * error + SCALE_TOLERANCE**2 * factor * right.abs(), grad.to(largest)
    )
    return None if fits.standing == Standing.BEYOND else factor


def _whole_copies(state: RecordedStep, sums: Mapping[str, Sum]) -> bool:
    """Return whether all ranks hold all gradients whole: their norms are equal before any clip."""
    recorded = state.recorded
    rows = [r for name in sums for r in recorded.rows(state.step, "reduce", "param_grad", f"{name}.grad")]
    every = set(recorded.run["rank"].tolist())
    return len(rows) == len(every) * len({int(recorded.run["tensor"][row]) for row in rows}) and len(
        {(int(recorded.run["tensor"][row]), int(recorded.run["boxes"][row])) for row in rows}
    ) * len(every) == len(rows)
