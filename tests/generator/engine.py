"""Discrete-event simulation: when every operation of a job starts and ends, on true time.

A collective begins on each rank when its kernel starts and ends on all together, a transfer after the last
arrival.
Point-to-point is rendezvous: the send lasts until the receive is posted; eager sends do not wait.
"""

from collections import deque
from dataclasses import dataclass

import numpy as np

from tests.generator.program import COLLECTIVE, COMPUTE, LOAD, RECV, SEND, SYNC, Program

LATENCY = 4_000.0  # ns from launch to kernel start on an idle stream


@dataclass
class Durations:
    """Times of everything that takes time, ns: faults scale these and nothing else."""

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


def simulate(program: Program, durations: Durations, *, eager: bool) -> Times:
    """Run all ranks to their ends. Raises RuntimeError on a deadlock, which is a bug of the program."""
    world = len(program.ranks)
    states = [_Rank(len(p.kind)) for p in program.ranks]
    work = [w.tolist() for w in durations.work]
    host = [h.tolist() for h in durations.host]
    transfer, tail = durations.transfer.tolist(), durations.tail.tolist()
    members = program.keys.members
    arrived: list[list[tuple[int, int, float]]] = [[] for _ in members]
    parked: dict[tuple[int, int], list[int]] = {}
    ready = deque(range(world))

    def resolve(key: int) -> None:
        calls = arrived[key]
        late = tail[key % len(tail)]
        if program.keys.pair[key] is not None and eager:
            (a, i, s), (b, j, r) = calls
            if program.ranks[a].kind[i] == RECV:
                a, i, s, b, j, r = b, j, r, a, i, s
            done = s + transfer[key]
            ends = [(a, i, done), (b, j, max(done, r + LATENCY) + late[b])]
        else:
            done = max(s for _, _, s in calls) + transfer[key]
            ends = [(rank, index, done + late[rank]) for rank, index, _ in calls]
        for rank, index, end in ends:
            states[rank].end[index] = end
            ready.extend(parked.pop((rank, index), ()))

    def advance(rank: int) -> None:
        state, prog = states[rank], program.ranks[rank]
        kinds, streams, afters, keys = prog.kind, prog.stream, prog.after, prog.key
        end, last, my_work, my_host = state.end, state.last, work[rank], host[rank]
        now = state.host
        for index in range(state.at, len(kinds)):
            kind = kinds[index]
            at = now + my_host[index]
            if kind == LOAD:
                state.launch[index] = state.start[index] = at
                now = at + my_work[index]
                state.issued[index] = end[index] = now
                continue
            begin = at + LATENCY if kind != SYNC else at
            need = afters[index]
            if kind != SYNC and (previous := last.get(streams[index])) is not None:
                need = (*need, previous)
            for dep in need:
                done = end[dep]
                if done is None:
                    parked.setdefault((rank, dep), []).append(rank)
                    state.at, state.host = index, now
                    return
                begin = max(begin, done)
            state.launch[index], state.issued[index] = now, at
            if kind == SYNC:
                state.start[index] = at
                end[index] = now = begin
                continue
            now = at
            state.start[index] = begin
            last[streams[index]] = index
            if kind == COMPUTE:
                end[index] = begin + my_work[index]
            elif kind in (COLLECTIVE, SEND, RECV):
                calls = arrived[keys[index]]
                calls.append((rank, index, begin))
                if len(calls) == members[keys[index]]:
                    resolve(keys[index])
        state.at = len(kinds)

    while ready:
        advance(ready.popleft())
    if stuck := [rank for rank in range(world) if states[rank].at < len(program.ranks[rank].kind)]:
        raise RuntimeError(f"deadlock: ranks {stuck} never finished")
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
