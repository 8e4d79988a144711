"""Assigns each message of a pipeline's stage to the stage before it or the stage after it, by the cost of each.

An activation is received before it is sent on, its gradient comes back after that, and is sent on later still. Among
all assignments of a stage's messages to its two neighbours that keep this order, the best one is found, and how much
worse each message would fit with the other neighbour.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.units import F64, I64, Mask


class Beside(NamedTuple):
    """A neighbour: the cost of matching each of its messages (rows) with the stage's (columns); None if unknown."""

    received: F64 | None  # its sends to the stage, by the stage's receives
    sent: F64 | None  # its receives from the stage, by the stage's sends


class Dealt(NamedTuple):
    """The cheapest assignment of a stage's messages, and the extra cost of others."""

    before: Mask  # whether each goes to, or comes from, the stage before
    cost: float
    margin_sent: float  # extra cost of the best division that differs in a sent message
    margin_received: float  # the same for a received message


class _Batch(NamedTuple):
    """Messages of one kernel and direction: they cannot be separated, so those of the stage before come first."""

    send: bool
    many: int
    sent: int  # messages that were sent before it
    received: int
    back: float  # what each costs at the stage before, less what it costs at the one behind


def dealt(sends: Mask, kernel: I64, before: Beside, behind: Beside, back: F64) -> Dealt | None:
    """Return the cheapest assignment of messages (`sends` are sent) to the stages `before` and `behind`.

    Messages are in the order of their kernels, sent ones before received ones of the same kernel. Unknown messages of a
    neighbour cost nothing and may be any number. `back` is the cost of assigning each message to the stage before, less
    the cost of the stage behind. None if nothing fits.
    """
    batches = _batches(sends, kernel, back)
    states = (int((~sends).sum()) + 1, int(sends.sum()) + 1)
    moves = [_moves(batch, states, before, behind) for batch in batches]
    ahead = [np.full(states, np.inf)]
    ahead[0][0, 0] = 0.0
    for batch, costs in zip(batches, moves, strict=True):
        ahead.append(np.min([_moved(ahead[-1] + c, batch, n) for n, c in enumerate(costs)], axis=0))
    rest = _last(states, before, behind)
    cost = float((ahead[-1] + rest).min())
    if not np.isfinite(cost):
        return None
    choice: list[npt.NDArray[np.bool_]] = []
    margins = [np.inf, np.inf]
    for at in range(len(batches) - 1, -1, -1):
        batch = batches[at]
        ways = [c + _moved(rest, batch, -n) for n, c in enumerate(moves[at])]
        prices = [float((ahead[at] + way).min()) for way in ways]
        best = int(np.argmin(prices))
        others = min((p for n, p in enumerate(prices) if n != best), default=np.inf)
        margins[batch.send] = min(margins[batch.send], others - cost)
        choice.append(np.arange(batch.many) < best)
        rest = np.min(ways, axis=0)
    return Dealt(np.concatenate(choice[::-1]), cost, margins[1], margins[0])


def _batches(sends: Mask, kernel: I64, back: F64) -> list[_Batch]:
    """The messages by kernel and direction, in order."""
    begins = np.flatnonzero(np.append(True, (np.diff(kernel) != 0) | (sends[1:] != sends[:-1])))
    found = []
    for begin, end in zip(begins.tolist(), [*begins[1:].tolist(), len(sends)], strict=True):
        sent = int(sends[:begin].sum())
        found.append(
            _Batch(bool(sends[begin]), end - begin, sent, begin - sent, float(back[begin:end].mean()))
        )
    return found


def _moves(batch: _Batch, states: tuple[int, int], before: Beside, behind: Beside) -> list[F64]:
    """Return the costs of giving 0, 1, … or all messages of a batch to the previous stage.

    Each is a table by the number of receives (rows) and sends (columns) of that stage so far; infinite where the
    order forbids it.
    """
    x, y = np.broadcast_arrays(*np.ogrid[: states[0], : states[1]])
    found = []
    for many in range(batch.many + 1):
        total = np.full(states, many * max(batch.back, 0.0) + (batch.many - many) * max(-batch.back, 0.0))
        for k in range(batch.many):
            back, number = k < many, k if k < many else k - many
            if batch.send:
                place = number + (y if back else batch.sent - y)
                in_turn = place < (batch.received - x if back else x)
                total = total + _of((before if back else behind).sent, batch.sent + k, place)
            else:
                place = number + (x if back else batch.received - x)
                in_turn = (place >= 0) if back else place < batch.sent - y
                total = total + _of((before if back else behind).received, batch.received + k, place)
            total = np.where(in_turn, total, np.inf)
        found.append(total)
    return found


def _of(table: F64 | None, column: int, number: I64) -> F64:
    """Return entries `number` of a column of costs, infinite outside; zero without a table."""
    if table is None:
        return np.where(number >= 0, 0.0, np.inf)
    known = np.append(table[:, column], np.inf)
    return np.asarray(known[np.where((number >= 0) & (number < len(table)), number, len(table))], np.float64)


def _moved(table: F64, batch: _Batch, by: int) -> F64:
    """Return `table` shifted along the number of sends or receives, filled up with infinity."""
    moved = np.full(table.shape, np.inf)
    axis = 1 if batch.send else 0
    end = table.shape[axis] - abs(by)
    source, target = [slice(None), slice(None)], [slice(None), slice(None)]
    source[axis], target[axis] = slice(max(-by, 0), max(-by, 0) + end), slice(max(by, 0), max(by, 0) + end)
    moved[tuple(target)] = table[tuple(source)]
    return moved


def _last(states: tuple[int, int], before: Beside, behind: Beside) -> F64:
    """Return 0 at the final numbers of receives and sends that use all known messages, infinity elsewhere."""
    x, y = np.ogrid[: states[0], : states[1]]
    fits = np.ones(states, bool)
    for side, number, rest in ((before, x, y), (behind, states[0] - 1 - x, states[1] - 1 - y)):
        fits &= True if side.received is None else number == len(side.received)
        fits &= True if side.sent is None else rest == len(side.sent)
    return np.where(fits, 0.0, np.inf)
