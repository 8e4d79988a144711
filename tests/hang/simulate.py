"""A simulator of hung jobs that leaves flight-recorder dumps with a known culprit.

Every rank runs a 4D-parallel training program (TP and CP collectives in layers, p2p between pipeline
stages, DP and world collectives at the step's end) on a host that runs ahead of its device by at most
`window` operations. One fault is planted; then everything runs until nothing moves. Seeds below 1 000 000
are for development.
"""

import pickle
import random
from dataclasses import dataclass, field
from pathlib import Path

from tracekit.axes import AXES

NESTED = ("tpcp", "twin")  # a union of two axes, and a second group of the same members as dp
DESCS = {
    "tpcp": "TENSOR_AND_CONTEXT_PARALLEL_GROUP",
    "twin": "DATA_PARALLEL_GROUP_GLOO",
    "tp": "TENSOR_MODEL_PARALLEL_GROUP",
    "cp": "CONTEXT_PARALLEL_GROUP",
    "pp": "PIPELINE_MODEL_PARALLEL_GROUP",
    "dp": "DATA_PARALLEL_GROUP",
    "world": "default_pg",
}
MESHES = [(2, 2, 2, 2), (2, 1, 4, 2), (4, 1, 2, 2), (1, 2, 2, 4), (2, 2, 1, 4), (8, 1, 2, 1)]
FAULTS = ("host_stall", "crash", "device_unseen", "device_unstarted", "wrong_size", "wrong_op", "skip")


@dataclass
class Op:
    axis: str
    name: str
    size: int
    group: tuple[int, ...]
    peer: int = -1
    sync: bool = False  # the host waits for it
    seq: int = 0
    record: int = 0
    issued: bool = False
    started: bool = False
    done: bool = False
    seen: bool = True  # its completion is observed


@dataclass
class Rank:
    rank: int
    program: list[Op]
    at: int = 0
    stop: int = -1  # the host never issues this one
    device_stop: int = -1  # the device never starts this one
    blind: int = -1  # completions from here on are not observed
    counts: dict[tuple[int, ...], int] = field(default_factory=dict)
    p2p: dict[tuple[int, ...], int] = field(default_factory=dict)
    issued: list[Op] = field(default_factory=list)
    first_open: int = 0


@dataclass(frozen=True)
class Case:
    sizes: dict[str, int]
    fault: str | None
    axis: str
    culprit: int | None
    timed: bool
    dumps: dict[int, dict]

    def write(self, folder: Path, name="nccl_trace_rank_{}") -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for rank, dump in self.dumps.items():
            (folder / name.format(rank)).write_bytes(pickle.dumps(dump, protocol=2))
        return folder


def members(sizes, rank):
    """Groups of a rank by axis; ranks are numbered tp, cp, pp, dp inner to outer."""
    coords, rest = {}, rank
    for axis in AXES:
        coords[axis], rest = rest % sizes[axis], rest // sizes[axis]
    groups = {}
    for axis in AXES:
        line = []
        for index in range(sizes[axis]):
            number, stride = 0, 1
            for other in AXES:
                number += stride * (index if other == axis else coords[other])
                stride *= sizes[other]
            line.append(number)
        groups[axis] = tuple(line)
    groups["world"] = tuple(range(sizes["tp"] * sizes["cp"] * sizes["pp"] * sizes["dp"]))
    plane = sizes["tp"] * sizes["cp"]
    groups["tpcp"] = tuple(range(rank - rank % plane, rank - rank % plane + plane))
    groups["twin"] = groups["dp"]
    return coords, groups


def program(sizes, rank, steps, layers, micro, nested=False):
    coords, groups = members(sizes, rank)
    ops = []

    def add(axis, name, size, *, sync=False):
        if len(groups[axis]) > 1:
            ops.append(Op(axis, name, size, groups[axis], sync=sync))

    def move(name, towards, size):
        stage = coords["pp"] + towards
        if 0 <= stage < sizes["pp"]:
            ops.append(Op("pp", name, size, groups["pp"], peer=groups["pp"][stage]))

    for _ in range(steps):
        for back in (False, True):
            for _ in range(micro):
                move("recv", 1 if back else -1, 4096)
                for _ in range(layers):
                    add("tp", "_all_gather_base", 4096)
                    add("cp", "_all_gather_base" if not back else "_reduce_scatter_base", 1024)
                    add("tp", "_reduce_scatter_base", 8192)
                    if back:
                        add("tp", "all_reduce", 512)
                    if nested:
                        add("tpcp", "all_reduce", 256)
                move("send", -1 if back else 1, 4096)
        add("dp", "_reduce_scatter_base", 65536)
        add("dp", "_all_gather_base", 16384)
        if nested:
            add("twin", "all_reduce", 2)
        add("world", "all_reduce", 1, sync=True)
    return ops


def plant(ranks, fault, axis, rng):
    """Choose a rank and one of its calls on the axis in the last third of its program."""
    choices = [
        (r.rank, i)
        for r in ranks
        for i, op in enumerate(r.program)
        if op.axis == axis
        and i > 2 * len(r.program) // 3
        and (op.peer < 0 or fault in {"host_stall", "crash", "wrong_size"})
    ]
    if not choices:
        return None
    culprit, at = rng.choice(choices)
    rank = ranks[culprit]
    if fault in {"host_stall", "crash"}:
        rank.stop = at
    elif fault == "device_unseen":
        rank.blind, rank.stop = at, min(at + rng.randrange(1, 12), len(rank.program))
    elif fault == "device_unstarted":
        rank.device_stop = at
    elif fault == "wrong_size":
        rank.program[at].size *= 3
        rank.program[at].size += 1
    elif fault == "wrong_op":
        rank.program[at].name = "all_to_all"
    elif fault == "skip":
        del rank.program[at]
    return culprit


def advance(rank, window):
    moved = False
    while rank.at < len(rank.program) and rank.at != rank.stop:
        open_ = [o for o in rank.issued[rank.first_open :] if not o.done or not o.seen]
        if len(open_) >= window or any(o.sync for o in open_):
            break
        op = rank.program[rank.at]
        table = rank.p2p if op.peer >= 0 else rank.counts
        key = (op.axis, op.group)
        table[key] = op.seq = table.get(key, 0) + 1
        op.record, op.issued = rank.at, True
        rank.issued.append(op)
        rank.at += 1
        moved = True
    return moved


def run(ranks, window):
    calls: dict = {}
    heads: dict = {}
    for r in ranks:
        sends: dict = {}
        counts: dict = {}
        for op in r.program:  # how calls will meet: collectives by number, p2p by direction and number
            if op.peer >= 0:
                way = (r.rank, op.peer) if op.name == "send" else (op.peer, r.rank)
                sends[way] = sends.get(way, 0) + 1
                key = (way, sends[way])
            else:
                key = (op.axis, op.group)
                counts[key] = counts.get(key, 0) + 1
                key = (*key, counts[key])
            calls.setdefault(key, []).append((r.rank, op))
    keys = {id(op): key for key, parts in calls.items() for _, op in parts}
    streams = {
        r.rank: {
            "main": [o for o in r.program if o.axis != "dp"],
            "dp": [o for o in r.program if o.axis == "dp"],
        }
        for r in ranks
    }
    heads = {(r.rank, s): 0 for r in ranks for s in ("main", "dp")}
    moved = True
    while moved:
        moved = False
        for r in ranks:
            moved |= advance(r, window)
        for r in ranks:
            for stream in ("main", "dp"):
                ops = streams[r.rank][stream]
                while heads[r.rank, stream] < len(ops):
                    op = ops[heads[r.rank, stream]]
                    blocked = 0 <= r.device_stop <= r.program.index(op) if r.device_stop >= 0 else False
                    if op.done:
                        heads[r.rank, stream] += 1
                        continue
                    if not op.issued or blocked:
                        break
                    if not op.started:
                        op.started = moved = True
                    parts = calls[keys[id(op)]]
                    need = len(op.group) if op.peer < 0 else 2
                    alike = len({(o.name if o.peer < 0 else "", o.size) for _, o in parts}) == 1
                    if len(parts) < need or not alike or not all(o.started for _, o in parts):
                        break
                    for number, other in parts:
                        other.done = True
                        owner = ranks[number]
                        other.seen = owner.blind < 0 or other.record < owner.blind
                    moved = True
        for r in ranks:
            while (
                r.first_open < len(r.issued) and r.issued[r.first_open].done and r.issued[r.first_open].seen
            ):
                r.first_open += 1


def make(
    seed,
    fault="random",
    axis="random",
    sizes=None,
    ring=2000,
    active_only=False,
    timed=None,
    status=True,
    drop=True,
    shape=None,
    window=None,
    nested=False,
    change=None,
):
    """One case; `fault` None is a healthy job dumped after its last step.

    shape: steps, layers and micro-batches; window: calls that a host runs ahead of its device; nested: with groups
    inside groups, and two groups of the same members. change: called after the fault is planted, with the ranks and a
    function that gives a rank's program without it.
    """
    rng = random.Random(seed)
    sizes = sizes or dict(zip(AXES, rng.choice(MESHES), strict=True))
    fault = rng.choice(FAULTS) if fault == "random" else fault
    live = [a for a in AXES if sizes[a] > 1]
    axis = rng.choice(live) if axis == "random" else axis
    if axis == "pp" and fault not in {None, "host_stall", "crash", "wrong_size"}:
        fault = "host_stall"
    timed = rng.random() < 0.4 if timed is None else timed
    world = sizes["tp"] * sizes["cp"] * sizes["pp"] * sizes["dp"]
    steps, layers, micro = rng.choice([(3, 2, 2), (4, 1, 3), (3, 1, 2)])
    steps, layers, micro = shape or (steps, layers, micro)
    ranks = [Rank(r, program(sizes, r, steps, layers, micro, nested)) for r in range(world)]
    culprit = plant(ranks, fault, axis, rng) if fault is not None else None
    if change is not None:
        change(ranks, lambda r: program(sizes, r, steps, layers, micro, nested))
    ahead = rng.choice([1, 2, 5, 20, 60])
    run(ranks, window or ahead)
    axes = ("world", *AXES, *(NESTED if nested else ()))
    dumps = {r.rank: dump(r, sizes, ring, active_only, timed, status, rng, axes) for r in ranks}
    if fault == "crash" and drop:
        del dumps[culprit]
    return Case(sizes, fault, axis, culprit, timed, dumps)


def names(sizes, axes=("world", *AXES)):
    world = sizes["tp"] * sizes["cp"] * sizes["pp"] * sizes["dp"]
    found = {}
    for axis in axes:
        for rank in range(world):
            group = members(sizes, rank)[1][axis]
            if len(group) > 1 and (axis, group) not in found:
                found[axis, group] = str(len(found))
    return found


def dump(rank, sizes, ring, active_only, timed, status, rng, axes=("world", *AXES)):
    named = names(sizes, axes)
    mine = members(sizes, rank.rank)[1]
    used = [(a, mine[a]) for a in axes if len(mine[a]) > 1]
    ids = {group: i for i, group in enumerate(used)}
    entries, frontier = [], {}
    skew = rng.randrange(-3_000_000, 3_000_000)
    last = rank.issued[-1].record if rank.issued else 0
    for op in rank.issued:
        key = next(k for k in used if k[0] == op.axis)
        done = op.done and op.seen
        got = frontier.setdefault(ids[key], [0, 0])
        got[0] = op.seq
        if done:
            got[1] = op.seq
        if active_only and done:
            continue
        p2p = op.peer >= 0
        me = op.group.index(rank.rank)
        way = (
            f"nccl:{op.name} {me}{'->' if op.name == 'send' else '<-'}{op.group.index(op.peer)}"
            if p2p
            else f"nccl:{op.name}"
        )
        state = "completed" if done else "started" if timed and op.started else "scheduled"
        created = 10**18 + op.record * 1_000_000 + skew
        entries.append(
            {
                "frames": [{"name": op.axis, "filename": "train.py", "line": 10 + len(op.name)}],
                "record_id": op.record,
                "pg_id": ids[key],
                "process_group": (named[key], DESCS[op.axis]),
                "collective_seq_id": 0 if p2p else op.seq,
                "p2p_seq_id": op.seq if p2p else 0,
                "op_id": op.seq,
                "profiling_name": way,
                "time_created_ns": created,
                "input_sizes": [[op.size]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[op.size * 2]],
                "output_dtypes": ["BFloat16"],
                "state": state,
                "time_discovered_started_ns": created + 5 if timed and op.started else None,
                "time_discovered_completed_ns": created + 9 if done else None,
                "retired": done,
                "timeout_ms": 600000,
                "is_p2p": p2p,
            }
        )
    assert last >= 0
    result = {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {
            named[k]: {"name": named[k], "desc": DESCS[k[0]], "ranks": str(list(k[1]))} for k in used
        },
        "entries": entries[-ring:],
    }
    if status:
        result["pg_status"] = {
            str(ids[k]): {
                "last_enqueued_collective": frontier.get(ids[k], [-1, -1])[0],
                "last_started_collective": -1,
                "last_completed_collective": frontier.get(ids[k], [-1, -1])[1],
            }
            for k in used
        }
    return result
