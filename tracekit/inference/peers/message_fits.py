"""How well messages of a pipeline's stages fit those of their neighbours, at each position of the step.

A message is received no earlier than it was sent, and where a kernel carries it alone, neither end lasts longer
than the transfer once both have begun, and a send that lasts longer than the transfer waits for this receive: it does
not end before it. A stage sends the result of a forward or of a backward, which takes longer.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tracekit.inference.peers.clock_difference import clock_differences
from tracekit.inference.peers.open_messages import OpenKernels
from tracekit.thresholds.inference import BACKWARD_LONGER, MOST_DEALT_STEPS
from tracekit.thresholds.tables import COMMON_END_NS
from tracekit.units import F64, I64, Mask

Program = tuple[tuple[int, bool], ...]
"""A rank's messages of a step: (position of the kernel, whether it is sent), sends first in each kernel."""


class StageStep(NamedTuple):
    """The messages of one rank in one step, in the order of its program; ns."""

    rows: I64
    start: I64  # on the clock of the rank's island
    end: I64
    worked: I64  # the rank's own time when they started


class Line(NamedTuple):
    """The ranks of a line in the order of their stages, and what each recorded of usual steps, by step."""

    ranks: tuple[int, ...]
    steps: tuple[dict[int, StageStep], ...]


class Times(NamedTuple):
    """Messages of one stage, one row a step of a line; ns."""

    start: I64
    end: I64
    quickest: I64  # the shortest time of a message at that position and line
    alone: Mask  # whether a message has a kernel of its own, by place

    def of(self, places: Mask) -> "Times":
        """Return the messages at some positions."""
        return Times(self.start[:, places], self.end[:, places], self.quickest[:, places], self.alone[places])


def misfits(sent: Times, received: Times) -> F64:
    """Return the share of steps in which each message `sent` (rows) cannot be the one `received` (columns)."""
    wrong = np.zeros((sent.start.shape[1], received.start.shape[1]))
    for n in range(len(sent.start)):
        s0, s1, least = (t[n][:, None] for t in (sent.start, sent.end, sent.quickest))
        r0, r1 = received.start[n], received.end[n]
        transfer = np.minimum(least, received.quickest[n]) + COMMON_END_NS
        early = r1 < s0 - COMMON_END_NS
        idle = received.alone & (r1 > np.maximum(r0, s1) + transfer)
        held = sent.alone[:, None] & (s1 > np.maximum(s0, r1) + transfer)
        waited = sent.alone[:, None] & (s1 > s0 + transfer)
        left = waited & received.alone & (s1 < np.minimum(r0 + least, r1) - COMMON_END_NS)
        wrong += early | idle | held | left
    return wrong / max(len(sent.start), 1)


def times(
    programs: Sequence[Program], at: int, lines: Sequence[Line], kernels: Mapping[int, OpenKernels]
) -> tuple[Times, Times]:
    """Return the messages of stage `at` and of the next one in steps that both recorded, on the clock of the first."""
    parts: list[list[tuple[I64, I64, I64]]] = [[], []]
    pairs = [(line.ranks[at], line.ranks[at + 1]) for line in lines]
    shifts = clock_differences(kernels, pairs, COMMON_END_NS)
    for line, pair in zip(lines, pairs, strict=True):
        shared = sorted(set(line.steps[at]) & set(line.steps[at + 1]))
        two, shift = kernels[pair[1]], shifts.get(pair)
        if shift is None or not shared or len(parts[0]) >= MOST_DEALT_STEPS:
            continue
        for side, mine in enumerate(parts):
            steps = [line.steps[at + side][step] for step in shared]
            least = np.min([step.end - step.start for step in steps], axis=0)
            for step in steps:
                ahead = side * np.rint(np.interp(step.end, two.end, shift)).astype(np.int64)
                mine.append((step.start + ahead, step.end + ahead, least))
    found = []
    for program, mine in zip(programs[at : at + 2], parts, strict=True):
        kernel = np.array([number for number, _ in program], np.int64)
        start, end, least = np.array(mine, np.int64).reshape(-1, 3, len(kernel)).transpose(1, 0, 2)
        found.append(Times(start, end, least, np.bincount(kernel)[kernel] == 1))
    return found[0], found[1]


def costs_of_going_back(program: Program, at: int, lines: Sequence[Line]) -> F64:
    """Return for each message of stage `at` the cost of the previous stage as peer, minus that of the next stage.

    A message sent after short work (a forward) goes to the next stage, one after long work goes back. All 0 unless
    the work splits clearly into equally many short and long pieces, the first one short and the last one long.
    """
    sends = np.flatnonzero([sent for _, sent in program])
    worked = np.array([step.worked for line in lines for step in line.steps[at].values()], np.float64)
    costs = np.zeros(len(program))
    if len(sends) < 2 or not len(worked):
        return costs
    took = np.median(worked[:, sends] - worked[:, np.append(0, sends[:-1])], axis=0)
    order = np.argsort(took, kind="stable")
    short, long = order[: len(sends) // 2], order[len(sends) // 2 :]
    clear = took[long].min() > BACKWARD_LONGER * took[short].max() and len(short) == len(long)
    if clear and 0 in short and len(sends) - 1 in long:
        costs[sends[short]], costs[sends[long]] = 1.0, -1.0
    return costs
