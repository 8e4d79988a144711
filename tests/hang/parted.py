"""Dumps of a few ranks that are written call by call, with stacks: rows of (number, operation, place, state)."""

import pickle

from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps

STEP, SAVE, END, EVALUATE = ("train_step", 20), ("save_checkpoint", 40), ("finalize", 60), ("evaluate", 70)
BEGIN_NS, SECOND_NS = 1_700_000_000 * 10**9, 10**9
LATE_NS = 600_130_000_000


def steps(count):
    """A step's all-reduce, so many times, done."""
    return [(seq, "all_reduce", STEP, "done") for seq in range(1, count + 1)]


def entry(place, row, *, stacks, group="0", desc="default_pg"):
    seq, op, (function, line), state = row
    message = op.startswith(("send", "recv"))
    issued = BEGIN_NS + place * SECOND_NS
    ended = {"done": issued + 1000, "late": issued + LATE_NS}.get(state)
    size = 1 if op == "barrier" else 1024
    found = {
        "record_id": place,
        "pg_id": int(group),
        "process_group": (group, desc),
        "collective_seq_id": 0 if message else seq,
        "p2p_seq_id": seq if message else 0,
        "op_id": seq,
        "profiling_name": f"nccl:{op}",
        "time_created_ns": issued,
        "input_sizes": [[size]],
        "input_dtypes": ["Float"],
        "output_sizes": [[size]],
        "output_dtypes": ["Float"],
        "state": "scheduled" if ended is None else "completed",
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": ended,
        "retired": state == "done",
        "timeout_ms": 600_000,
        "is_p2p": message,
    }
    if stacks:
        found["frames"] = [
            {"name": op, "filename": "/lib/torch/distributed/distributed_c10d.py", "line": 2810},
            {"name": function, "filename": "/job/train.py", "line": line},
            {"name": "main", "filename": "/job/train.py", "line": line + 100},
        ]
    return found


def write(folder, rows, *, world=None, stacks=True, host=None):
    """Write a dump for each rank of `rows`, a list or a mapping by rank."""
    given = rows if isinstance(rows, dict) else dict(enumerate(rows))
    members = str(list(range(world or len(given))))
    for rank, calls in given.items():
        dump = {
            "version": "2.9",
            "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": members}},
            "entries": [entry(place, row, stacks=stacks) for place, row in enumerate(calls)],
        }
        if host is not None:
            dump["hostname"] = host(rank)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))


def write_groups(folder, groups, rows, *, record=0):
    """Write a dump for each rank of `rows`; groups: (members, description) by name; rows begin with the group's name.

    record: id of the first entry; from 1 on the ring has lost older ones.
    """
    for rank, calls in rows.items():
        config = {
            name: {"name": name, "desc": desc, "ranks": str(list(members))}
            for name, (members, desc) in groups.items()
            if rank in members
        }
        entries = [
            entry(place, row, stacks=True, group=name, desc=groups[name][1])
            for place, (name, *row) in enumerate(calls)
        ]
        for made in entries:
            made["record_id"] += record
        dump = {"version": "2.9", "pg_config": config, "entries": entries}
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return analyse(load_dumps([str(folder)]))
