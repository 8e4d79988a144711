"""Peers of messages in a pipeline of three stages or more, from the order of its schedule and the messages' end times.

torch up to 2.4 records that a message was sent or received, but not its peer. The first stage talks only to the second,
the last to the one before it; the messages of a stage between them with each neighbour follow from what that one does
(tables.stage_labels). Stages run the same in every step and replica, so a message is judged at its place of the step,
over all of them (tables.message_fits).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

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
from tracekit.inference.peers.stage_labels import Beside, Dealt, dealt
from tracekit.matching.clock import Clocks
from tracekit.matching.match import Operations
from tracekit.rank_events.coded_words import among
from tracekit.rank_events.operation_names import SENDS
from tracekit.rank_events.operations import RankOps
from tracekit.rank_events.step_marks import NO_STEP
from tracekit.thresholds.schedules import (
    CLEARLY_DEALT_MISFITS,
    DEALT_MARGIN,
    DEALT_MISFITS,
    MOST_DEALT_MESSAGES,
)
from tracekit.units import Mask

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
