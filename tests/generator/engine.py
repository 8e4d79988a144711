"""Discrete-event simulation: when every operation of a job starts and ends, on true time.

A collective begins on each rank when its kernel starts, and ends on all together, one transfer after the last arrival.
Point-to-point is rendezvous: the send lasts until the receive is posted; eager sends do not wait.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from tests.generator.program import COLLECTIVE, COMPUTE, LOAD, RECV, SEND, SYNC, Program

LATENCY = 4_000.0  # ns from launch to kernel start on an idle stream


@dataclass
class Durations:
    """Durations of everything that takes time, ns. Faults scale these and nothing else."""

    work: list[np.ndarray]  # per rank, per operation: kernel or load time
    host: list[np.ndarray]  # per rank, per operation: host time to issue it
    transfer: np.ndarray  # per collective or message
    tail: np.ndarray  # (keys, world) extra time until a rank leaves, small; indexed [key % len, rank]


@dataclass
class Times:
    """Per rank, per operation, true ns: host issue begin and end, kernel start and end."""

    launch: list[np.ndarray]
    issued: list[np.ndarray]
    start: list[np.ndarray]
    end: list[np.ndarray]


class _Rank:
    """State of one rank's host and streams."""

    def __init__(self, count: int) -> None:
        self.at = 0
        self.host = 0.0
        self.last: dict[int, int] = {}
        self.launch = [0.0] * count
        self.issued = [0.0] * count
        self.start = [0.0] * count
        self.end: list[float | None] = [None] * count


class _Simulation:
    """All ranks of a job under way."""

    def __init__(self, program: Program, durations: Durations, *, eager: bool) -> None:
        self.program, self.eager = program, eager
        self.states = [_Rank(len(p.kind)) for p in program.ranks]
        self.work = [w.tolist() for w in durations.work]
        self.host = [h.tolist() for h in durations.host]
        self.transfer, self.tail = durations.transfer.tolist(), durations.tail.tolist()
        self.members = program.keys.members
        self.arrived: list[list[tuple[int, int, float]]] = [[] for _ in self.members]
        self.parked: dict[tuple[int, int], list[int]] = {}
        self.ready = deque(range(len(program.ranks)))

    def run(self) -> None:
        """Run all ranks to their ends; RuntimeError where some wait for each other."""
        while self.ready:
            self.advance(self.ready.popleft())
        ranks = zip(self.states, self.program.ranks, strict=True)
        if stuck := [rank for rank, (state, prog) in enumerate(ranks) if state.at < len(prog.kind)]:
            raise RuntimeError(f"deadlock: ranks {stuck} never finished")

    def resolve(self, key: int) -> None:
        """End a collective or message on all its members; who waited for it goes on."""
        calls = self.arrived[key]
        late = self.tail[key % len(self.tail)]
        if self.program.keys.pair[key] is not None and self.eager:
            (a, i, s), (b, j, r) = calls
            if self.program.ranks[a].kind[i] == RECV:
                a, i, s, b, j, r = b, j, r, a, i, s
            done = s + self.transfer[key]
            ends = [(a, i, done), (b, j, max(done, r + LATENCY) + late[b])]
        else:
            done = max(s for _, _, s in calls) + self.transfer[key]
            ends = [(rank, index, done + late[rank]) for rank, index, _ in calls]
        for rank, index, end in ends:
            self.states[rank].end[index] = end
            self.ready.extend(self.parked.pop((rank, index), ()))

    def advance(self, rank: int) -> None:
        """Move one rank's host on until it ends or needs an operation whose end is not known yet."""
        state, prog = self.states[rank], self.program.ranks[rank]
        end, my_work, my_host = state.end, self.work[rank], self.host[rank]
        now = state.host
        for index in range(state.at, len(prog.kind)):
            kind = prog.kind[index]
            at = now + my_host[index]
            if kind == LOAD:
                state.launch[index] = state.start[index] = at
                now = at + my_work[index]
                state.issued[index] = end[index] = now
                continue
            begin = self.begin(rank, index, at)
            if begin is None:
                state.at, state.host = index, now
                return
            state.launch[index], state.issued[index] = now, at
            if kind == SYNC:
                state.start[index] = at
                end[index] = now = begin
                continue
            now = at
            state.start[index] = begin
            state.last[prog.stream[index]] = index
            if kind == COMPUTE:
                end[index] = begin + my_work[index]
            elif kind in (COLLECTIVE, SEND, RECV):
                key = prog.key[index]
                self.arrived[key].append((rank, index, begin))
                if len(self.arrived[key]) == self.members[key]:
                    self.resolve(key)
        state.at = len(prog.kind)

    def begin(self, rank: int, index: int, at: float) -> float | None:
        """When an operation issued at `at` can begin; None where something it needs has no end yet."""
        state, prog = self.states[rank], self.program.ranks[rank]
        sync = prog.kind[index] == SYNC
        begin, need = at if sync else at + LATENCY, prog.after[index]
        if not sync and (previous := state.last.get(prog.stream[index])) is not None:
            need = (*need, previous)
        for dep in need:
            done = state.end[dep]
            if done is None:
                self.parked.setdefault((rank, dep), []).append(rank)
                return None
            begin = max(begin, done)
        return begin


def simulate(program: Program, durations: Durations, *, eager: bool) -> Times:
    """True times of all operations. Raises RuntimeError on a deadlock, which is a bug of the program."""
    simulation = _Simulation(program, durations, eager=eager)
    simulation.run()
    states = simulation.states
    return Times(
        [np.array(s.launch) for s in states],
        [np.array(s.issued) for s in states],
        [np.array(s.start) for s in states],
        [np.array(s.end, dtype=float) for s in states],
    )


def step_bounds(program: Program, times: Times, steps: int) -> np.ndarray:
    """(steps + 1,) true ns: the job's begin, then the end of each step on the rank that ends last."""
    ends = np.zeros(steps + 1)
    for prog, end in zip(program.ranks, times.end, strict=True):
        sync = np.array(prog.kind) == SYNC
        np.maximum.at(ends, np.array(prog.step)[sync] + 1, end[sync])
    return ends
