"""Size and speed of `tracekit hang`: `python -m tests.hang.bench --ranks 16384 --entries 200 --jobs 2`.

Writes dumps of a job with one stalled host to a scratch folder, reads and judges them, and loads the same files with a
bare `pickle.Unpickler` in the same run; with `--fuzz N` also feeds N damaged dumps to the reader.
"""

import argparse
import copy
import os
import pickle
import random
import resource
import shutil
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path

import pytest  # noqa: F401 (the bench belongs to the tests' environment)

from tests.hang.simulate import AXES, DESCS, make, members
from tests.hang.test_unpickle import mutate
from tracekit.analysis.hang import analyse
from tracekit.ingest.flight import _Handler, load_dumps
from tracekit.ingest.flight_pool import decode_all

FRAMES = [
    {"name": n, "filename": f"/opt/train/parallel/{n}.py", "line": 40 + i}
    for i, n in enumerate(
        ["all_reduce", "forward", "layer", "block", "stage", "schedule", "step", "train", "main", "run"]
    )
]


def grid(world):
    if world >= 512:
        return {"tp": 8, "cp": 2, "pp": 16, "dp": world // 256}
    return {"tp": 4, "cp": 2, "pp": 2, "dp": world // 16}


def write_rank(folder, sizes, rank, entries, culprit, axis, named, world_text):
    groups = members(sizes, rank)[1]
    live = ["world", *[a for a in AXES if sizes[a] > 1]]
    stuck = rank in members(sizes, culprit)[1][axis]
    seqs = dict.fromkeys(live, 0)
    plan = [a for a in live[1:] for _ in range(1)]
    rows, total = [], entries
    for number in range(total):
        last = number == total - 1
        name = axis if last and stuck else "world" if last else plan[number % len(plan)]
        if last and rank == culprit:
            break
        seqs[name] += 1
        done = not last
        rows.append(
            {
                "frames": copy.deepcopy(FRAMES),
                "record_id": number + 5,
                "pg_id": live.index(name),
                "process_group": (named[name, groups[name][0], groups[name][-1]], DESCS[name]),
                "collective_seq_id": seqs[name] + 90,
                "p2p_seq_id": 0,
                "op_id": number,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": 10**18 + number * 1000,
                "input_sizes": [[4096, 1, 5120]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[4096, 1, 5120]],
                "output_dtypes": ["BFloat16"],
                "state": "completed" if done else "scheduled",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": 10**18 + number * 1000 + 500 if done else None,
                "retired": done,
                "timeout_ms": 600000,
                "is_p2p": False,
            }
        )
    config = {}
    for name in live:
        key = named[name, groups[name][0], groups[name][-1]]
        config[key] = {
            "name": key,
            "desc": DESCS[name],
            "ranks": world_text if name == "world" else str(list(groups[name])),
        }
    status = {}
    for number, name in enumerate(live):
        enqueued = seqs[name] + 90
        waits = rank != culprit and name == (axis if stuck else "world")
        status[str(number)] = {
            "last_enqueued_collective": enqueued,
            "last_started_collective": -1,
            "last_completed_collective": enqueued - waits,
        }
    dump = {
        "version": "2.10",
        "pg_config": config,
        "comm_lib_version": "2.27",
        "pg_status": status,
        "entries": rows,
    }
    (folder / f"dump_{rank:05d}").write_bytes(pickle.dumps(dump, protocol=2))


def write_part(folder, sizes, ranks, entries, culprit, axis):
    world = sizes["tp"] * sizes["cp"] * sizes["pp"] * sizes["dp"]
    text = str(list(range(world)))
    named = {("world", 0, world - 1): "0"}
    for axis_ in AXES:
        for rank in range(world):
            group = members_of(sizes, rank, axis_)
            named.setdefault((axis_, group[0], group[-1]), str(len(named)))
    for rank in ranks:
        write_rank(folder, sizes, rank, entries, culprit, axis, named, text)


def members_of(sizes, rank, axis):
    stride = 1
    for other in AXES:
        if other == axis:
            break
        stride *= sizes[other]
    first = rank - (rank // stride % sizes[axis]) * stride
    return first, first + stride * (sizes[axis] - 1)


def bare(paths):
    begin = time.perf_counter()
    for path in paths:
        with path.open("rb") as file:
            pickle.Unpickler(file).load()
    return time.perf_counter() - begin


def fuzz(count):
    rng = random.Random(11)
    folder = Path(tempfile.mkdtemp(prefix="hangfuzz"))
    originals = [pickle.dumps(d, protocol=2) for d in make(4, "host_stall", ring=12).dumps.values()]
    paths = []
    for number in range(count):
        path = folder / f"d{number}"
        path.write_bytes(mutate(rng.choice(originals), rng))
        paths.append(str(path))
    begin = time.perf_counter()
    kinds = {"read": 0, "refused": 0}
    for _, result in decode_all(paths, _Handler, 2, seconds=10.0):
        kinds["read" if isinstance(result, tuple) else "refused"] += 1
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10
    print(
        f"fuzz: {count} damaged dumps in {time.perf_counter() - begin:.1f} s: {kinds}, worker peak {peak} MiB"
    )
    shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=256)
    parser.add_argument("--entries", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--axis", choices=AXES, action="append")
    parser.add_argument("--fuzz", type=int, default=0)
    args = parser.parse_args()
    if args.fuzz:
        fuzz(args.fuzz)
        return
    sizes = grid(args.ranks)
    for axis in args.axis or AXES:
        culprit = args.ranks * 5 // 7
        folder = Path(tempfile.mkdtemp(prefix="hangbench"))
        parts = [
            get_context("fork").Process(
                target=write_part, args=(folder, sizes, range(i, args.ranks, 2), args.entries, culprit, axis)
            )
            for i in range(2)
        ]
        for part in parts:
            part.start()
        for part in parts:
            part.join()
        paths = sorted(folder.iterdir())
        size = sum(p.stat().st_size for p in paths)
        sample = paths[:: max(1, len(paths) // 1024)]
        begin = time.perf_counter()
        dumps = load_dumps([str(folder)], jobs=args.jobs)
        read = time.perf_counter() - begin
        finding = analyse(dumps)
        total = time.perf_counter() - begin
        plain = bare(sample) * len(paths) / len(sample)
        peak = (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            + args.jobs * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
        )
        right = [c.rank for c in finding.culprits] == [culprit]
        answer = "right" if right else "WRONG"
        print(
            f"{args.ranks} dumps x {args.entries} entries ({size / 1e9:.2f} GB), "
            f"fault on {axis}, {os.cpu_count()} cores, "
            f"{args.jobs} jobs: {answer} ({finding.reason}); "
            f"{total:.1f} s, reading {read:.1f} s; "
            f"bare Unpickler {plain:.1f} s on one core, ratio {total / plain:.2f}; at most {peak / (1 << 20):.2f} GiB"
        )
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
