"""Lines of NCCL's Inspector of a made-up job (tp 2 × dp 4) in which one rank computes longer, in format v4.

Written from the examples in NVIDIA/nccl, plugins/profiler/inspector/README.md; the reader was not looked at.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

WORLD, TP = 8, 2
EPOCH_US = 1_752_867_229_000_000


def groups(rank):
    """Members of the groups of a rank: (communicator, members) of tp, dp and world."""
    block, column = rank - rank % TP, rank % TP
    return {
        "tp": (f"0xa{block:x}", list(range(block, block + TP))),
        "dp": (f"0xd{column:x}", list(range(column, WORLD, TP))),
        "world": ("0xff", list(range(WORLD))),
    }


def program(layers=4):
    """The calls of one step: axis, kind, bytes."""
    layer = [("tp", "AllGather", 1 << 20), ("tp", "ReduceScatter", 1 << 21)]
    return [*layer * layers, ("dp", "AllReduce", 1 << 24), ("world", "AllReduce", 1 << 13)]


def calls(slow: int | None, steps=12, work_us=3000, extra=1.4, seed=1):
    """By rank: (axis, kind, bytes, number, start, stop) of all calls, us of the job's clock."""
    rng = random.Random(seed)
    now = dict.fromkeys(range(WORLD), 0.0)
    numbers: dict[tuple[str, str], int] = {}
    found = {rank: [] for rank in range(WORLD)}
    for _ in range(steps):
        for axis, kind, size in program():
            for rank in range(WORLD):
                now[rank] += work_us * rng.uniform(0.99, 1.01) * (extra if rank == slow else 1.0)
            for members in {tuple(groups(rank)[axis][1]) for rank in range(WORLD)}:
                name = groups(members[0])[axis][0]
                number = numbers[name, kind] = numbers.get((name, kind), -1) + 1
                stop = max(now[r] for r in members) + 20 + size / 100_000
                for rank in members:
                    found[rank].append((axis, kind, size, number, now[rank], stop))
                    now[rank] = stop
    return found


def lines(rank, own, *, verbose=True, skew_us=0, keep: Callable[[int], bool] = lambda _: True, dropped=0):
    """The file of one rank. skew_us: its host's clock. keep: which records its ring keeps, by place."""
    rows = []
    for place, (axis, kind, size, number, start, stop) in enumerate(own):
        if not keep(place):
            continue
        name, members = groups(rank)[axis]
        begun, ended = (round(EPOCH_US + skew_us + t) for t in (start, stop))
        row = {
            "header": {"id": name, "rank": members.index(rank), "n_ranks": len(members), "nnodes": 2},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "git_rev": "",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": ended + 50,
                "hostname": f"node{rank // 4}",
                "pid": 4000 + rank,
            },
            "coll_perf": {
                "coll": kind,
                "coll_sn": number,
                "coll_msg_size_bytes": size,
                "coll_exec_time_us": ended - begun,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 1.0,
                "coll_busbw_gbs": 1.0,
            },
        }
        if verbose:
            kernel = {
                "channel_id": 0,
                "kernel_start_ts": begun,
                "kernel_stop_ts": ended,
                "kernel_record_ts": ended,
            }
            row["coll_perf"]["event_trace_ts"] = {
                "coll_start_ts": begun - 9,
                "coll_stop_ts": begun - 4,
                "kernel_events": [kernel],
            }
        rows.append(json.dumps(row))
    if dropped:
        stats = {"dump_stats": {"coll_ring_dropped": dropped}}
        rows.append(json.dumps({**json.loads(rows[-1]), "coll_perf": None, **stats}))
    return "\n".join(rows) + "\n"


def write(folder: Path, slow: int | None = 5, ranks=range(WORLD), **options) -> Path:
    """Write the files of a job as Inspector names them."""
    folder.mkdir(parents=True, exist_ok=True)
    made = calls(slow)
    for rank in ranks:
        text = lines(rank, made[rank], skew_us=rank // 4 * 250_000, **options)
        (folder / f"node{rank // 4}-pid{4000 + rank}.log").write_text(text)
    return folder
