"""Finds which elements of a model's weights the flat tensors of an optimiser are, as ZeRO-1 and 2 step them.

Weights lie in a *line*: where they are views of one buffer, their addresses say where; else they may have been put
end to end in the model's order or the opposite one, all together or matrices apart from the rest. A flat tensor that
shares memory with a line is where its address says. Any other is the one window of the line that holds its values in
the weights' format. Values that fit in several windows say nothing by themselves. They are placed only where the
others show that each rank steps an equal share of its lines, and what is left of that share has one order. Where two
lines explain all tensors in unlike ways, or any tensor has no place, nothing is known.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from numerics.record.masters.stepped import Masters, Stepped, Stretch, direction
from numerics.thresholds.recording import FLAT_ANCHOR, FLAT_CANDIDATES


@dataclass(frozen=True, eq=False)
class _Line:
    """Weights in a row: all values, and where each weight starts; `address` of the memory where they are views."""

    values: torch.Tensor
    starts: tuple[tuple[torch.Tensor, int], ...]
    address: int = 0

    def fits(self, tensor: torch.Tensor, at: int) -> bool:
        """Return whether a flat tensor holds the line's values from `at` on, in its format; zeros behind its end."""
        held = self.values[at : at + tensor.numel()]
        own = tensor.to(held.device, held.dtype)
        return torch.equal(own[: held.numel()], held) and not own[held.numel() :].any()

    def windows(self, tensor: torch.Tensor) -> list[int]:
        """Return where a flat tensor may lie in the line; two places mean several."""
        if tensor.untyped_storage().data_ptr() == self.address and tensor.dtype == self.values.dtype:
            return [int(tensor.storage_offset())]
        own = tensor.to(self.values.device, self.values.dtype)
        changes = (own[1:] != own[:-1]).nonzero()
        if not changes.numel():
            return [0, 0] if self.fits(tensor[:1], 0) or bool((self.values == own[0]).any()) else []
        begin = int(changes[0])
        found = (self.values == own[begin]).nonzero().reshape(-1)
        for ahead in range(1, min(FLAT_ANCHOR, own.numel() - begin)):
            if found.numel() < FLAT_CANDIDATES:
                break
            found = found[found + ahead < self.values.numel()]
            found = found[self.values[found + ahead] == own[begin + ahead]]
        if found.numel() > FLAT_CANDIDATES:
            return [0, 0]
        return [at for at in (found - begin).tolist() if at >= 0 and self.fits(tensor, at)][:2]

    def pieces(self, at: int, count: int) -> list[tuple[torch.Tensor, int, int]]:
        """Return the (weight, start in the line, elements) of each weight's part of a window."""
        cut = [(w, max(at, start), min(at + count, start + w.numel())) for w, start in self.starts]
        return [(weight, first, end - first) for weight, first, end in cut if first < end]


def flat_masters(
    weights: Sequence[torch.Tensor], stepped: Sequence[tuple[int, torch.Tensor]], dp: tuple[int, int]
) -> Masters:
    """Return what flat tensors hold of weights on rank `dp` (index, count); empty unless each has one place.

    `stepped` are the optimiser's tensors, each with the number of its group.
    """
    plain = [*weights, *(tensor for _, tensor in stepped)]
    flat = all(t.dim() == 1 and t.numel() and t.is_contiguous() for _, t in stepped)
    if not stepped or not flat or any(hasattr(t, "placements") or not t.is_contiguous() for t in plain):
        return Masters()
    ways = [found for lines in _layouts(weights) if (found := _placed(lines, stepped, dp)) is not None]
    different = {frozenset((key, id(own.tensor), own.stretch) for key, own in way.items()) for way in ways}
    return Masters(ways[0]) if len(different) == 1 else Masters()


def _layouts(weights: Sequence[torch.Tensor]) -> Iterable[list[_Line]]:
    """Yield the ways in which weights may lie in lines."""
    storages: dict[tuple[int, torch.dtype], list[torch.Tensor]] = {}
    formats: dict[torch.dtype, list[torch.Tensor]] = {}
    for weight in weights:
        storages.setdefault((weight.untyped_storage().data_ptr(), weight.dtype), []).append(weight)
        formats.setdefault(weight.dtype, []).append(weight)
    yield [_buffer(own, address) for (address, _), own in storages.items()]
    for together in (lambda _: 0, lambda weight: weight.dim() > 1):
        apart = [
            [weight for weight in own if together(weight) == key]
            for own in formats.values()
            for key in sorted({together(weight) for weight in own})
        ]
        for order in (1, -1):
            yield [_end_to_end(own[::order]) for own in apart]


def _buffer(weights: Sequence[torch.Tensor], address: int) -> _Line:
    """Return the line of weights in one memory."""
    first = weights[0]
    memory = first.untyped_storage()
    values = torch.empty(0, dtype=first.dtype, device=first.device).set_(memory)
    return _Line(values, tuple((weight, int(weight.storage_offset())) for weight in weights), address)


def _end_to_end(weights: Sequence[torch.Tensor]) -> _Line:
    """Return the line of weights that are put one behind another."""
    starts, start = [], 0
    for weight in weights:
        starts.append((weight, start))
        start += weight.numel()
    return _Line(torch.cat([weight.detach().reshape(-1) for weight in weights]), tuple(starts))


def _placed(
    lines: Sequence[_Line], stepped: Sequence[tuple[int, torch.Tensor]], dp: tuple[int, int]
) -> dict[int, Stepped] | None:
    """Return what each tensor holds of each weight; None unless all tensors have one place each, without overlaps."""
    places: list[tuple[_Line, int] | None] = []
    for _, tensor in stepped:
        found = [
            (line, at)
            for line in lines
            if line.values.element_size() <= tensor.element_size()
            for at in line.windows(tensor)
        ]
        if not found:
            return None
        places.append(found[0] if len(found) == 1 else None)
    if None in places:
        _by_shares(lines, stepped, places, dp)
    made: dict[int, Stepped] = {}
    for (_, tensor), place in zip(stepped, places, strict=True):
        if place is None:
            return None
        line, at = place
        for weight, first, count in line.pieces(at, tensor.numel()):
            if id(weight) in made:
                return None
            start = next(begin for one, begin in line.starts if one is weight)
            made[id(weight)] = Stepped(tensor, Stretch(first - at, first - start, count))
    return made


def _by_shares(
    lines: Sequence[_Line],
    stepped: Sequence[tuple[int, torch.Tensor]],
    places: list[tuple[_Line, int] | None],
    dp: tuple[int, int],
) -> None:
    """Place the tensors with values that fit in several places by the rank's share, as far as that places them.

    All others must be a whole share or one weight's part of it. Several tensors with equal values follow their line in
    the direction in which the others do, if they are of one group and as many as the pieces that are left.
    """
    due = sorted((piece for line in lines for piece in _share(line, dp)), key=lambda piece: piece[1])
    order = {id(line): number for number, line in enumerate(lines)}
    on_lines = [
        (len(lines) * group + (order[id(place[0])] if place else 0), place[1] if place else None)
        for (group, _), place in zip(stepped, places, strict=True)
    ]
    way = direction(on_lines)
    taken = [(*place, tensor.numel()) for place, (_, tensor) in zip(places, stepped, strict=True) if place]
    if not taken or any(place not in due for place in taken):
        return
    left = [number for number, place in enumerate(places) if place is None]
    for number in left:
        if places[number] is not None:
            continue
        _, tensor = stepped[number]
        free = [
            (line, at)
            for line, at, count in due
            if count == tensor.numel() and line.fits(tensor, at) and not _meets(taken, line, at, count)
        ]
        alike = [n for n in left if torch.equal(stepped[n][1], tensor)]
        groups, on = {stepped[n][0] for n in alike}, {id(line) for line, _ in free}
        if len(free) != len(alike) or (len(alike) > 1 and (not way or len(groups) > 1 or len(on) > 1)):
            return
        for one, place in zip(alike, free[:: way or 1], strict=True):
            places[one] = place
            taken.append((*place, tensor.numel()))


def _share(line: _Line, dp: tuple[int, int]) -> list[tuple[_Line, int, int]]:
    """Return the (line, start, elements) of a rank's equal share of a line, and of each weight's part of it."""
    size = -(-line.values.numel() // dp[1])
    whole = (line, dp[0] * size, size)
    parts = [(line, first, count) for _, first, count in line.pieces(dp[0] * size, size)]
    return parts if whole in parts else [whole, *parts]


def _meets(taken: Sequence[tuple[_Line, int, int]], line: _Line, at: int, count: int) -> bool:
    """Return whether a window has elements of one that is taken."""
    return any(own is line and max(begin, at) < min(begin + size, at + count) for own, begin, size in taken)
