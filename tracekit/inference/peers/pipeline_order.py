"""Peers of messages in a pipeline of three stages or more, from the order of its schedule and the messages' end times.

torch up to 2.4 records that a message was sent or received, but not its peer. The first stage talks only to the second,
the last to the one before it; the messages of a stage between them with each neighbour follow from what that one does
(as below). Stages run the same in every step and replica, so a message is judged at its place of the step,
over all of them (`message_fits`).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tracekit.inference.peers.directed_messages import directed_messages, with_peers, without_peer
from tracekit.inference.peers.message_fits import (
    Line,
    Program,
    StageStep,
    costs_of_going_back,
    misfits,
    times,
)
from tracekit.inference.peers.open_messages import OpenKernels, open_kernels
from tracekit.matching.clock import Clocks
from tracekit.matching.match import Operations
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import SENDS
from tracekit.rank_events.rank_ops import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.thresholds.inference import (
    CLEARLY_DEALT_MISFITS,
    DEALT_MARGIN,
    DEALT_MISFITS,
    MOST_DEALT_MESSAGES,
)
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


_FEWEST: Final = 3
"""Stages from which on one has two neighbours."""


def with_pipeline_order(
    ops: Operations, clocks: Clocks, lines: Sequence[tuple[int, ...]]
) -> tuple[list[RankOps], int]:
    """Return (operations of all ranks with the peers from the order of a pipeline, their number) along `lines`.

    `lines` hold ranks in the order of their stages. Lines that run the same are judged together.
    """
    filled = dict(ops.per_rank)
    by_programs: dict[tuple[Program, ...], list[Line]] = defaultdict(list)
    for line in sorted(lines):
        usual = [_usual(ops, r, clocks) for r in line if r in filled] if len(line) >= _FEWEST else []
        if usual and len(usual) == len(line) and all(program for program, _ in usual):
            programs = tuple(program for program, _ in usual)
            by_programs[programs].append(Line(line, tuple(steps for _, steps in usual)))
    count = 0
    kernels = open_kernels(ops, clocks) if by_programs else {}
    for programs, members in by_programs.items():
        for at, back in enumerate(_Pipeline(programs, members, kernels).solved()):
            for member in members:
                rank, steps = member.ranks[at], member.steps[at].values()
                peers = [member.ranks[at - 1 if b else at + 1] for b in back.tolist()] * len(steps)
                filled[rank] = with_peers(
                    filled[rank], [row for step in steps for row in step.rows.tolist()], peers
                )
                count += len(peers)
    return [filled[r] for r in ops.ranks], count


def _usual(ops: Operations, rank: int, clocks: Clocks) -> tuple[Program, dict[int, StageStep]]:
    """Return what a rank exchanges in most of its steps with fully directed messages, and these steps."""
    source, worked = ops.per_rank[rank], ops.at_start[ops.of(rank)]
    silent = among(source.op, ("send_recv",)) & (source.src < 0)
    silent[without_peer(source)] = False
    directed = np.setdiff1d(source.step, np.append(source.step[silent], NO_STEP)).tolist()
    found = directed_messages(source, clocks)
    programs: dict[int, Program] = {}
    steps: dict[int, StageStep] = {}
    for number in directed:
        at = np.flatnonzero(found.step == number)
        kernel = np.unique(found.kernel[at], return_index=True)
        order = np.argsort(kernel[1], kind="stable")
        place = np.argsort(order)[np.searchsorted(kernel[0], found.kernel[at])]
        sorting = np.lexsort((found.way[at] != SENDS, place))
        at, place = at[sorting], place[sorting]
        programs[number] = tuple(zip(place.tolist(), (found.way[at] == SENDS).tolist(), strict=True))
        rows = found.rows[at]
        steps[number] = StageStep(rows, found.start[at], found.end[at], worked[rows])
    counts = Counter(programs.values())
    usual = max(counts, key=lambda program: (counts[program], len(program)), default=())
    if len(usual) > MOST_DEALT_MESSAGES:
        return (), {}
    return usual, {number: step for number, step in steps.items() if programs[number] == usual}


class _Pipeline:
    """For each stage, as far as known, whether the messages that it sends and receives are with the one before."""

    def __init__(
        self, programs: Sequence[Program], lines: Sequence[Line], kernels: Mapping[int, OpenKernels]
    ) -> None:
        ends = (0, len(programs) - 1)
        self._sends = [np.array([sent for _, sent in program], bool) for program in programs]
        self._kernel = [np.array([kernel for kernel, _ in program], np.int64) for program in programs]
        self._times = [times(programs, at, lines, kernels) for at in range(ends[1])]
        self._back = [costs_of_going_back(program, at, lines) for at, program in enumerate(programs)]
        self._open = range(1, ends[1])
        self._sent: dict[int, Mask] = {at: np.full(len(self._sends[at]), at > 0) for at in ends}
        self._received: dict[int, Mask] = dict(self._sent)

    def solved(self) -> list[Mask]:
        """Return for each stage whether each of its messages is with the stage before; empty if a stage stays open.

        Facts about a stage show more about its neighbours. At the end each must agree with all others.
        """
        while sum(self._learn(at) for at in self._open):
            pass
        if min(len(self._sent), len(self._received)) < len(self._sends):
            return []
        whole = [np.where(s, self._sent[at], self._received[at]) for at, s in enumerate(self._sends)]
        again = ((at, self._dealt(at)) for at in self._open)
        return whole if all(f and (f.before == whole[at]).all() for at, f in again) else []

    def _learn(self, at: int) -> bool:
        """Solve the sends or receives of stage `at`; return whether either is new."""
        found = None if at in self._sent and at in self._received else self._dealt(at)
        known = len(self._sent) + len(self._received)
        if found and found.margin_sent >= DEALT_MARGIN:
            self._sent.setdefault(at, found.before)
        if found and found.margin_received >= DEALT_MARGIN:
            self._received.setdefault(at, found.before)
        return len(self._sent) + len(self._received) > known

    def _dealt(self, at: int) -> Dealt | None:
        """Return the best division of stage `at`'s messages between its neighbours; None where it does not fit."""
        before, behind = self._beside(at, at - 1), self._beside(at, at + 1)
        found = dealt(self._sends[at], self._kernel[at], before, behind, self._back[at])
        return found if found and _fits(found) else None

    def _beside(self, at: int, other: int) -> Beside:
        """Return the costs of stage `at`'s messages with the known ones of the stage `other` beside it."""
        behind = other > at
        one, two = self._times[min(at, other)]
        mine, theirs = (one, two) if behind else (two, one)
        sends, away, home = self._sends[other], self._sent.get(other), self._received.get(other)
        out, back = (None if m is None else (m if behind else ~m) for m in (away, home))
        received = None if out is None else misfits(theirs.of(out & sends), mine.of(~self._sends[at]))
        sent = None if back is None else misfits(mine.of(self._sends[at]), theirs.of(back & ~sends)).T
        return Beside(received, sent)


def _fits(found: Dealt) -> bool:
    """Whether few messages misfit; more may, as with slow transfers, if every other division has twice the cost."""
    clear = min(found.margin_sent, found.margin_received) >= max(found.cost, DEALT_MARGIN)
    return found.cost <= (CLEARLY_DEALT_MISFITS if clear else DEALT_MISFITS) * len(found.before)


# Assigns each message of a pipeline's stage to the stage before it or the stage after it, by the cost of
# each.
#
# An activation is received before it is sent on, its gradient comes back after that, and is sent on later
# still. Among all assignments of a stage's messages to its two neighbours that keep this order, the best one
# is found, and how much worse each message would fit with the other neighbour.


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
