"""The computation that each message of an interleaved pipeline belongs to, and the messages without a counterpart.

Stages that hold several model chunks pass micro-batches around a ring: the first stage receives all but those of its
first chunk. Recorders write a row for unsent messages there as well, or leave it out, or lack the first
receive (the published analysis of the OSDI'25 tables reads all three). Tables of one chunk a stage need none of this.
"""

from dataclasses import dataclass

import numpy as np

from tracekit.ingest.operation_table.kinds import OperationKind
from tracekit.ingest.operation_table.table import OperationTable
from tracekit.units import I64

_PHASES = ("forward", "backward")


@dataclass(frozen=True)
class Served:
    """Columns by row of a table, shape (rows,).

    computation: equal for a computation and the communication of the same rank and step that it needs or that follows
    it, -1 if unknown. pair: the number of a message among matched ones, -1 without a counterpart.
    """

    computation: I64
    pair: I64


def served(table: OperationTable) -> Served:
    """Return what each row serves; messages keep their ordinals if a stage has one chunk or chunks are unknown."""
    found = Served(np.full(len(table.dp), -1, np.int64), table.ordinal.copy())
    names = [k.name for k in table.kinds]
    computes = [names.index(f"{p}-compute") if f"{p}-compute" in names else -1 for p in _PHASES]
    chunks = int(table.chunk[np.isin(table.kind, computes)].max(initial=-1)) + 1
    if chunks < 2:
        return found
    place = table.dp * table.pp_size + table.stage
    for here in np.unique(place).tolist():
        for phase, code in enumerate(computes):
            rows = np.flatnonzero((place == here) & (table.kind == code))
            if len(rows):
                _serve(table, found, np.flatnonzero(place == here), rows, phase, chunks)
    return found


def _serve(table: OperationTable, found: Served, here: I64, rows: I64, phase: int, chunks: int) -> None:
    """Fill `found` for the rows that serve the computations `rows` of one phase, all on the place with rows `here`."""
    chunk = np.full(int(table.ordinal[rows].max()) + 1, -1, np.int64)
    chunk[table.ordinal[rows]] = table.chunk[rows]
    found.computation[rows] = 2 * table.ordinal[rows] + phase
    stage = int(table.stage[rows[0]])
    for code, kind in enumerate(table.kinds):
        mine = here[table.kind[here] == code]
        if len(mine) and kind.toward and kind.name.startswith(_PHASES[phase]):
            onward = kind.toward if kind.collective == "send" else -kind.toward
            beyond = chunk * table.pp_size + stage + onward
            meets = np.flatnonzero((beyond >= 0) & (beyond < chunks * table.pp_size))
            which = _which(len(chunk), meets, int(table.ordinal[mine].max()) + 1, kind)
            if which is not None:
                found.computation[mine] = 2 * which[table.ordinal[mine]] + phase
                number = np.full(len(chunk), -1, np.int64)
                number[meets] = np.arange(len(meets))
                found.pair[mine] = number[which[table.ordinal[mine]]]
        elif len(mine) and _needed(table, kind, phase):
            for c in np.unique(table.chunk[mine]).tolist():
                with_it = np.flatnonzero(chunk == c)
                if c >= 0 and len(with_it):
                    at = with_it[0] if phase == 0 else with_it[-1]
                    found.computation[mine[table.chunk[mine] == c]] = 2 * int(at) + phase


def _which(computes: int, meets: I64, messages: int, kind: OperationKind) -> I64 | None:
    """Return by message its computation among `computes` (`meets` of them send or receive); None if unknown."""
    if messages == computes:
        return np.arange(computes)
    if messages == len(meets):
        return meets
    if messages == computes - 1 and kind.collective == "recv":
        return np.arange(1, computes)
    return None


def _needed(table: OperationTable, kind: OperationKind, phase: int) -> bool:
    """Whether operations of `kind` wait for, or hold back, one chunk in the phase: gathered ahead, or summed beside."""
    beside = any(k.name.startswith("separate-grads") for k in table.kinds)
    return kind.collective == "allgather" if phase == 0 else beside and kind.collective == "reduce_scatter"
