"""Writes a simulation as flight-recorder dumps, one pickle a rank, as NCCL's watchdog leaves them.

Every call that a host issued is an entry; it is completed where its end is finite, so that a hang shows in the times
alone. Dumps are those of torch 2.9 with timing switched off, its default: they hold no starts.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from reftrain.simulate.grid import Group
from reftrain.simulate.kernel_names import RECORDER_NAMES
from reftrain.simulate.pool import Progress, in_parallel, made_folder, put
from reftrain.simulate.program import COMMUNICATION, Kind, Op
from reftrain.simulate.simulation import Simulation
from reftrain.thresholds import FLIGHT_ENTRIES

TIMEOUT_MS: Final = 600_000


@dataclass(frozen=True)
class _Call:
    """The part of an operation's entries that is the same on all ranks of a pipeline rank."""

    row: int
    op: Op
    seq: int
    frames: list[dict[str, Any]]
    sizes: tuple[list[list[int]], list[list[int]]]


class FlightWriter:
    """Writes dumps into `folder`. `dead` are ranks without a process: they leave no dump."""

    def __init__(self, simulation: Simulation, folder: Path, dead: Sequence[int] = ()) -> None:
        self.simulation, self.folder, self.dead = simulation, folder, frozenset(dead)
        self._calls: dict[int, list[_Call]] = {}

    def calls(self, stage: int) -> list[_Call]:
        """Return the calls of all steps of a pipeline rank, in the order in which the host makes them."""
        if stage not in self._calls:
            ops = self.simulation.programs[stage].ops
            seqs: dict[tuple[object, ...], int] = {}
            calls = []
            for step in range(self.simulation.steps):
                for index, op in enumerate(ops):
                    if op.kind in COMMUNICATION:
                        key = (op.group, op.members, op.kind is Kind.COLLECTIVE)
                        seqs[key] = seqs.get(key, 0) + 1
                        sizes = [[op.nelems[0]]], [[op.nelems[1]]]
                        row = step * len(ops) + index
                        calls.append(_Call(row, op, seqs[key], _frames(op, step), sizes))
            self._calls = {stage: calls}
        return self._calls[stage]

    def write(self, rank: int) -> tuple[int, int]:
        """Write one dump; return its entries and bytes. The file appears whole or not at all."""
        if rank in self.dead:
            return 0, 0
        dump = self.dump(rank)
        packed = pickle.dumps(dump, protocol=2)
        put(self.folder / f"rank_{rank}", packed)
        return len(dump["entries"]), len(packed)

    def dump(self, rank: int) -> dict[str, Any]:
        """Return the dump of one rank, with the last `FLIGHT_ENTRIES` calls."""
        sim = self.simulation
        groups = sim.grid.groups_of(rank)
        ids = {g.name: i for i, g in enumerate(groups)}
        entries, status = self._entries(rank, ids)
        for number, entry in enumerate(entries):
            entry["record_id"] = number
        return {
            "version": "2.9",
            "nccl_version": "2.27.5",
            "host_name": sim.host_name(rank),
            "pg_config": {
                g.name: {"name": g.name, "desc": g.desc, "ranks": _listed(g.ranks)} for g in groups
            },
            "pg_status": {
                str(number): {
                    "last_enqueued_collective": enqueued or -1,
                    "last_started_collective": -1,
                    "last_completed_collective": completed or -1,
                }
                for number, (enqueued, completed) in enumerate(status)
            },
            "entries": entries[-FLIGHT_ENTRIES:],
        }

    def _entries(
        self, rank: int, ids: Mapping[str, int]
    ) -> tuple[list[dict[str, Any]], list[tuple[int, int]]]:
        """Return the entries of all calls, and by group the last call or message that was issued and that ended.

        `ids` numbers the groups by name. A call that the rank left out has no entry, and the numbers of its later
        calls in the group lag by one.
        """
        sim = self.simulation
        stage, place = sim.grid.place(rank)
        issued, done = sim.times[stage].issued[:, place], sim.times[stage].end[:, place]
        status, last_end = [(0, 0)] * len(ids), [-np.inf] * len(ids)
        entries: list[dict[str, Any]] = []
        lags: dict[str, int] = {}
        made = [c for c in self.calls(stage) if np.isfinite(issued[c.row]) or self._skipped(c, rank)]
        for call in made:
            group = sim.grid.group_over(call.op.group, call.op.members, rank)
            if not np.isfinite(issued[call.row]):
                lags[group.name] = lags.get(group.name, 0) + 1
                continue
            seq, number = call.seq - lags.get(group.name, 0), ids[group.name]
            status[number] = seq, status[number][1]
            if np.isfinite(done[call.row]) and done[call.row] >= last_end[number]:
                status[number], last_end[number] = (seq, seq), done[call.row]
            entries.append(self._entry(call, rank, group, number, seq, issued[call.row], done[call.row]))
        return entries, status

    def _skipped(self, call: _Call, rank: int) -> bool:
        return (rank, call.row) in self.simulation.left_out

    def _entry(
        self, call: _Call, rank: int, group: Group, number: int, seq: int, issued: float, done: float
    ) -> dict[str, Any]:
        """Return one entry without its `record_id`; `number` is the group's on this rank, times are in ns."""
        sim, op = self.simulation, call.op
        p2p = op.kind is not Kind.COLLECTIVE
        name = _message_name(sim, rank, op, group) if p2p else RECORDER_NAMES[op.label]
        ended = bool(np.isfinite(done))
        sizes = call.sizes
        if (rank, call.row) in sim.resized:
            sizes = [[2 * op.nelems[0]]], [[2 * op.nelems[1]]]
        return {
            "frames": call.frames,
            "pg_id": number,
            "process_group": (group.name, group.desc),
            "collective_seq_id": 0 if p2p else seq,
            "p2p_seq_id": seq if p2p else 0,
            "op_id": seq,
            "profiling_name": name,
            "time_created_ns": self._wall(rank, issued),
            "input_sizes": sizes[0],
            "input_dtypes": [op.dtype],
            "output_sizes": sizes[1],
            "output_dtypes": [op.dtype],
            "state": "completed" if ended else "scheduled",
            "time_discovered_started_ns": None,
            "time_discovered_completed_ns": self._wall(rank, done) if ended else None,
            "retired": ended,
            "timeout_ms": TIMEOUT_MS,
            "is_p2p": p2p,
        }

    def _wall(self, rank: int, true: float) -> int:
        sim = self.simulation
        node = sim.node(rank)
        shown = true * (1.0 + sim.clocks.drift[node]) + sim.clocks.offset[node]
        return sim.begin_ns + round(float(shown))


def _frames(op: Op, step: int) -> list[dict[str, Any]]:
    """Return the stack of a call: one frame that names the phase, stage and micro-batch it belongs to."""
    phase = "backward" if op.backward else "forward"
    if op.stage < 0:
        return [{"name": f"step {step}", "filename": "reftrain/simulate", "line": 0}]
    name = f"step {step}: {phase} of stage {op.stage}, micro-batch {op.micro_batch}"
    return [{"name": name, "filename": "reftrain/simulate", "line": 0}]


def _message_name(sim: Simulation, rank: int, op: Op, group: Group) -> str:
    """Return torch's name of a message, with both ends as ranks of the group."""
    peer = rank + (op.peer - sim.grid.coords(rank)["pp"]) * sim.grid.strides["pp"]
    me, other = group.ranks.index(rank), group.ranks.index(peer)
    return f"nccl:{op.label} {me}{'->' if op.kind is Kind.SEND else '<-'}{other}"


@lru_cache(maxsize=4096)
def _listed(ranks: tuple[int, ...]) -> str:
    return str(list(ranks))


def write_dumps(
    writer: FlightWriter, ranks: Sequence[int], jobs: int, progress: Progress | None = None
) -> tuple[int, int]:
    """Write the dumps of `ranks` with `jobs` processes; return entries and bytes in all.

    Raises MachineError where the folder cannot be written.
    """
    with made_folder(writer.folder):
        return in_parallel(writer, ranks, jobs, lambda rank: writer.simulation.grid.place(rank)[0], progress)
