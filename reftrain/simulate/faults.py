"""Planted faults of a simulated job: the effect of each kind of `reftrain run` on ranks, hosts and links.

A fault changes the conditions under which operations run, never a trace. A hang stops, leaves out or contradicts one
call; everything after it follows from the rules of the engine.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from reftrain.config.fault_kinds import FAULT_KINDS, HANGS
from reftrain.config.fault_spec import FaultSpec
from reftrain.errors import ConfigError
from reftrain.faults.pace import KINDS, Pace
from reftrain.simulate.conditions import Conditions
from reftrain.simulate.grid import F64, Grid
from reftrain.simulate.kernel_names import OPS
from reftrain.simulate.program import COMMUNICATION, Kind, Op, Program
from reftrain.simulate.setup import Setup

_GROUPS: Mapping[str, tuple[str, ...]] = {
    "tp": ("tp",),
    "cp": ("cp",),
    "pp": ("pp",),
    "dp": ("dp", "dp_cp", "own"),
    "ep": ("ep",),
}
"""Kinds of process group that an axis named in a fault includes."""

_AT_THE_END: Mapping[str, str] = {"checkpoint": "save_ms", "evaluation": "evaluate_ms"}
"""Kinds of work at the end of a step beside training, with the field of their length."""

Table = dict[tuple[int, int], Conditions]


def last_step(faults: Sequence[FaultSpec], steps: int) -> int:
    """Return the number of steps to simulate: a hang ends the job in the first of its steps."""
    hangs = [f.first for f in faults if f.kind in HANGS and f.first < steps]
    return min([steps, *(first + 1 for first in hangs)])


def conditions_of(setup: Setup, grid: Grid, programs: Sequence[Program], steps: int) -> Table:
    """Return the conditions by (pipeline rank, step of the window) where a fault is planted; `steps` of it are run.

    Raises ConfigError for a fault that cannot strike this job.
    """
    table: Table = {}
    every = setup.steps * setup.window.count if setup.window.count > 1 else steps
    for number, fault in enumerate(setup.faults):
        if FAULT_KINDS[fault.kind].copies and not any(op.copied for p in programs for op in p.ops):
            problem = f"{fault.kind} strikes at copies between device and host, and this job makes none"
            raise ConfigError("fault", problem, "set optimizer.offload = true")
        if not any(fault.active(step) for step in range(every)):
            raise ConfigError(
                "fault.steps",
                f"{fault.steps} holds none of the {every} steps",
                "name a step that is run, or give more --steps",
            )
        rng = np.random.default_rng([setup.seed, 97, number, *([setup.first] if setup.first else [])])
        struck = [fault.active(setup.first + step) for step in range(steps)]
        if fault.kind in KINDS:
            _pace(fault, grid, table, struck, setup)
            continue
        for step in range(steps):
            if fault.kind == "doc_imbalance":
                _documents(fault, grid, programs, table, step, rng, struck=struck[step])
            elif fault.kind in HANGS:
                if step == fault.first:
                    _hang(fault, grid, programs, table, step)
            elif struck[step]:
                _slow(fault, grid, table, step)
    return table


def _at(table: Table, stage: int, step: int) -> Conditions:
    return table.setdefault((stage, step), Conditions())


def _rank(fault: FaultSpec) -> int:
    if fault.rank is None:
        raise AssertionError("the parser asks for a rank")
    return fault.rank


def _scaled(before: F64 | None, width: int, places: int | slice, factor: float) -> F64:
    out = np.ones(width) if before is None else before.copy()
    out[places] *= factor
    return out


def _added(before: F64 | None, width: int, place: int, ns: float) -> F64:
    out = np.zeros(width) if before is None else before.copy()
    out[place] += ns
    return out


def _slow(fault: FaultSpec, grid: Grid, table: Table, step: int) -> None:
    """Plant one of the kinds that cost time in one step."""
    values, width = fault.values, grid.width
    if fault.kind == "long_stage":
        stage = grid.stages - 1 if fault.rank is None else grid.place(fault.rank)[0]
        conditions = _at(table, stage, step)
        conditions.factor = _scaled(conditions.factor, width, slice(None), values["factor"])
        return
    if fault.kind in _AT_THE_END:
        _at_the_end(fault, grid, table, step)
        return
    if fault.kind in {"slow_rail", "slow_switch"}:
        _network(fault, grid, table, step)
        return
    stage, place = grid.place(_rank(fault))
    conditions = _at(table, stage, step)
    if fault.kind == "slow_compute":
        conditions.factor = _scaled(conditions.factor, width, place, values["factor"])
    elif fault.kind == "launch_bound":
        conditions.launch = _added(conditions.launch, width, place, values["delay_us"] * 1e3)
    elif fault.kind == "pauses":
        conditions.pauses.append((_added(None, width, place, values["pause_ms"] * 1e6), int(values["every"])))
    elif fault.kind == "allocator_retries":
        conditions.retries.append(
            (_added(None, width, place, values["retry_ms"] * 1e6), int(values["every"]))
        )
    elif fault.kind == "cpu_contention":
        conditions.turns.append(
            (values["slice_ms"] * 1e6, _added(None, width, place, values["wait_ms"] * 1e6))
        )
    elif fault.kind == "late_data":
        conditions.late = _added(conditions.late, width, place, values["delay_ms"] * 1e6)
    elif fault.kind == "slow_host_link":
        conditions.copies = _added(conditions.copies, width, place, values["delay_ms"] * 1e6)
    elif fault.kind == "slow_send":
        conditions.sends = _added(conditions.sends, width, place, values["delay_ms"] * 1e6)
    elif fault.kind == "slow_link":
        conditions.link = _added(conditions.link, width, place, values["delay_ms"] * 1e6)
    else:
        raise AssertionError(fault.kind)


def _network(fault: FaultSpec, grid: Grid, table: Table, step: int) -> None:
    """Delay the transfers between hosts that pass the rail of the fault's rank, or its host's first switch."""
    rank, size = _rank(fault), grid.node_size
    for stage in range(grid.stages):
        ranks = grid.ranks(stage)
        if fault.kind == "slow_rail":
            there = ranks % size == rank % size
        else:
            ranks_each = size * int(fault.values["hosts"])
            there = ranks // ranks_each == rank // ranks_each
        conditions = _at(table, stage, step)
        delay = np.where(there, fault.values["delay_ms"] * 1e6, 0.0)
        conditions.network = delay if conditions.network is None else conditions.network + delay


def _at_the_end(fault: FaultSpec, grid: Grid, table: Table, step: int) -> None:
    """Plant what the fault's rank, or all ranks, do at the end of one step beside training."""
    named = None if fault.rank is None else grid.place(fault.rank)
    ns = fault.values[_AT_THE_END[fault.kind]] * 1e6
    for stage in range(grid.stages) if named is None else [named[0]]:
        conditions, took = _at(table, stage, step), np.zeros(grid.width)
        took[slice(None) if named is None else named[1]] = ns
        if fault.kind == "checkpoint":
            conditions.saves = took if conditions.saves is None else conditions.saves + took
        else:
            conditions.evaluations = took if conditions.evaluations is None else conditions.evaluations + took


def _pace(fault: FaultSpec, grid: Grid, table: Table, struck: Sequence[bool], setup: Setup) -> None:
    """Plant a pace that changes with time, on the fault's rank or on all ranks.

    Time counts from the window of the fault's first step, or from that step where it is of this window.
    """
    named = None if fault.rank is None else grid.place(fault.rank)
    passed_s = (setup.window.number - fault.first // setup.steps) * setup.window.apart_s
    for stage in range(grid.stages) if named is None else [named[0]]:
        pace, held = Pace(fault, passed_s), np.zeros(grid.width)
        held[slice(None) if named is None else named[1]] = 1.0
        for step in np.flatnonzero(struck).tolist():
            _at(table, stage, step).paces.append((pace, held))


def _documents(
    fault: FaultSpec,
    grid: Grid,
    programs: Sequence[Program],
    table: Table,
    step: int,
    rng: np.random.Generator,
    *,
    struck: bool,
) -> None:
    """Deal long documents: attention of some (dp, cp) coordinates takes up to `factor` times the mean.

    The coordinates change with every step and micro-batch; where a rank is named, they are always those of that rank.
    All tensor and pipeline ranks of a coordinate work on the same documents.
    """
    dp, cp, _ = grid.shape
    batches = sorted({op.micro_batch for p in programs for op in p.ops if op.attention})
    if fault.rank is None:
        share = rng.random((len(batches), dp, cp)) ** 2  # few long documents among many short ones
        factors = 1.0 + (fault.values["factor"] - 1.0) * share
    else:
        at = grid.coords(fault.rank)
        factors = np.ones((len(batches), dp, cp))
        factors[:, at["dp"], at["cp"]] = fault.values["factor"]
    if struck:
        deal(table, grid, step, dict(zip(batches, factors, strict=True)))


def deal(table: Table, grid: Grid, step: int, factors: Mapping[int, F64]) -> None:
    """Multiply attention's time by `factors`, (dp, cp) for each micro-batch, on every stage."""
    for stage in range(grid.stages):
        conditions = _at(table, stage, step)
        for micro_batch, factor in factors.items():
            wide = np.broadcast_to(factor[:, :, None], grid.shape).reshape(-1)
            conditions.attention[micro_batch] = conditions.attention.get(micro_batch, 1.0) * wide


def _hang(fault: FaultSpec, grid: Grid, programs: Sequence[Program], table: Table, step: int) -> None:
    """Stop, leave out or contradict the rank's first communication of the step (of an axis, if one is named)."""
    stage, place = grid.place(_rank(fault))
    ops = programs[stage].ops
    index = struck(fault, ops)
    conditions = _at(table, stage, step)
    if fault.kind == "skip_collective":
        conditions.skips.append((place, index))
    elif fault.kind == "wrong_size":
        conditions.breaks.append((place, index))
    else:
        conditions.stops.append((place, index))


def struck(fault: FaultSpec, ops: Sequence[Op]) -> int:
    """Return the index, in the program of its rank, of the operation that a hang strikes.

    A message that is left out is the last before one of the other direction between these two ranks: messages
    between them have one size, so that every later one takes the place of the one before, as far as the order of
    the pair allows. Raises ConfigError where the rank never communicates so.
    """
    kinds = None if fault.axis is None else _GROUPS[fault.axis]
    label = None if fault.op is None else OPS.get(fault.op, fault.op)
    for index, op in enumerate(ops):
        if op.kind not in COMMUNICATION or (kinds is not None and op.group not in kinds):
            continue
        if label is None or op.label == label:
            if fault.kind == "skip_collective" and op.kind in {Kind.SEND, Kind.RECV}:
                return _last_of_run(ops, index)
            return index
    call = " ".join(
        part for part in (fault.op or "communication", f"on {fault.axis}" if fault.axis else "") if part
    )
    raise ConfigError("fault.rank", f"rank {fault.rank} makes no {call} call", "choose another")


def _last_of_run(ops: Sequence[Op], index: int) -> int:
    """Return the last message from `index` on before the rank exchanges one of the other direction with its peer."""
    last = index
    for later in range(index + 1, len(ops)):
        if ops[later].group == "pp" and ops[later].peer == ops[index].peer:
            if ops[later].kind is not ops[index].kind:
                break
            last = later
    return last
