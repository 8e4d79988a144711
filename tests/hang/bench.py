"""Size and speed of `tracekit hang`: `python -m tests.hang.bench --ranks 16384 --entries 200 --jobs 2`.

Writes dumps of a job with one stalled host to a scratch folder, reads and judges them, and loads the same files with a
bare `pickle.Unpickler` in the same run; with `--fuzz N` also feeds N damaged dumps to the reader.
"""

import argparse
import gc
import os
import pickle
import random
import resource
import shutil
import tempfile
import time
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest  # noqa: F401 (the bench belongs to the tests' environment)

from tests.hang.simulate import AXES, DESCS, make, members
from tests.hang.test_unpickle import mutate
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import LIMITS, load_dumps
from tracekit.dumps.transfer import DumpReader, Parcel
from tracekit.workers import do_all

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


def template(sizes, entries, kind, axis):
    """The pickle of one kind of rank (culprit, stuck: a peer in its group, waiting: in the world), with placeholders.

    Placeholders have the length of what `write_part` puts in their place, so that the bytes stay a valid pickle.
    """
    live = ["world", *[a for a in AXES if sizes[a] > 1]]
    seqs = dict.fromkeys(live, 0)
    rows = []
    # one program: `axis`, then the world; the culprit stops before the first, who waits for it in the first
    ends = {"culprit": [], "stuck": [axis], "waiting": [axis, "world"]}[kind]
    names = [live[1:][number % len(live[1:])] for number in range(entries - 2)] + ends
    for number, name in enumerate(names):
        last = number == len(names) - 1 and kind != "culprit"
        seqs[name] += 1
        rows.append(
            {
                "frames": [dict(f) for f in FRAMES],
                "record_id": number + 5,
                "pg_id": live.index(name),
                "process_group": (NAME[name], DESCS[name]),
                "collective_seq_id": seqs[name] + 90,
                "p2p_seq_id": 0,
                "op_id": number,
                "profiling_name": "nccl:all_reduce",
                "time_created_ns": 10**18 + number * 1000,
                "input_sizes": [[4096, 1, 5120]],
                "input_dtypes": ["BFloat16"],
                "output_sizes": [[4096, 1, 5120]],
                "output_dtypes": ["BFloat16"],
                "state": "scheduled" if last else "completed",
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None if last else 10**18 + number * 1000 + 500,
                "retired": not last,
                "timeout_ms": 600000,
                "is_p2p": False,
            }
        )
    world = sizes["tp"] * sizes["cp"] * sizes["pp"] * sizes["dp"]
    lists = {n: str(list(range(world))) if n == "world" else f"<{n}>".ljust(9 * sizes[n], "#") for n in live}
    waits = {"culprit": None, "stuck": axis, "waiting": "world"}[kind]
    status = {
        str(number): {
            "last_enqueued_collective": seqs[name] + 90,
            "last_started_collective": -1,
            "last_completed_collective": seqs[name] + 90 - (name == waits),
        }
        for number, name in enumerate(live)
    }
    dump = {
        "version": "2.10",
        "pg_config": {NAME[n]: {"name": NAME[n], "desc": DESCS[n], "ranks": lists[n]} for n in live},
        "comm_lib_version": "2.27",
        "pg_status": status,
        "entries": rows,
    }
    return pickle.dumps(dump, protocol=2), lists


NAME = {n: f"@{n}".ljust(8, "@") for n in ("world", *AXES)}


def write_part(folder, sizes, ranks, entries, culprit, axis):
    made = {kind: template(sizes, entries, kind, axis) for kind in ("culprit", "stuck", "waiting")}
    stuck = set(members(sizes, culprit)[1][axis])
    for rank in ranks:
        kind = "culprit" if rank == culprit else "stuck" if rank in stuck else "waiting"
        data, lists = made[kind]
        groups = members(sizes, rank)[1]
        for number, name in enumerate(lists):
            label = "00000000" if name == "world" else f"{number}{groups[name][0]:07d}"
            data = data.replace(NAME[name].encode(), label.encode())
            if name != "world":
                text = "[" + ",".join(f"{r:8d}" for r in groups[name])[1:] + "]"
                data = data.replace(lists[name].encode(), text.ljust(len(lists[name])).encode())
        (folder / f"dump_{rank:05d}").write_bytes(data)


def bare(paths, collect):
    """CPU seconds to load these files with nothing else, in a process with nothing else in it."""
    ours, theirs = get_context("fork").Pipe()

    def load():
        gc.freeze()
        (gc.enable if collect else gc.disable)()
        spent = time.process_time()
        for path in paths:
            with path.open("rb") as file:
                pickle.Unpickler(file).load()
        theirs.send(time.process_time() - spent)

    child = get_context("fork").Process(target=load)
    child.start()
    seconds = ours.recv()
    child.join()
    return seconds


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
    for _, result in do_all(paths, DumpReader, 2, replace(LIMITS, seconds=10.0)):
        kinds["read" if isinstance(result, Parcel) else "refused"] += 1
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
    parser.add_argument("--gone", action="store_true", help="the culprit left no dump")
    parser.add_argument("--fuzz", type=int, default=0)
    args = parser.parse_args()
    if args.fuzz:
        fuzz(args.fuzz)
        return
    sizes, culprit = grid(args.ranks), args.ranks * 5 // 7
    folder = Path(tempfile.mkdtemp(prefix="hangbench"))
    try:
        for axis in args.axis or AXES:
            write_all(folder, sizes, range(args.ranks), args.entries, culprit, axis)
            measure(folder, args, culprit, axis)
    finally:
        shutil.rmtree(folder)


def write_all(folder, sizes, ranks, entries, culprit, axis):
    parts = [
        get_context("fork").Process(
            target=write_part, args=(folder, sizes, ranks[i::2], entries, culprit, axis)
        )
        for i in range(2)
    ]
    for part in parts:
        part.start()
    for part in parts:
        part.join()


def measure(folder, args, culprit, axis):
    if args.gone:
        (folder / f"dump_{culprit:05d}").unlink(missing_ok=True)
    paths = sorted(folder.iterdir())
    size = sum(p.stat().st_size for p in paths)
    sample = paths[:: max(1, len(paths) // 512)]
    plain, quick = (bare(sample, collect) * len(paths) / len(sample) for collect in (True, False))
    spent = os.times()
    begin = time.perf_counter()
    dumps = load_dumps([str(folder)], jobs=args.jobs)
    read = time.perf_counter() - begin
    finding = analyse(dumps)
    total = time.perf_counter() - begin
    ours = sum(os.times()[:4]) - sum(spent[:4])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak += args.jobs * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    right = [c.rank for c in finding.culprits] == [culprit]
    print(
        f"{args.ranks} dumps x {args.entries} entries ({size / 1e9:.2f} GB), fault on {axis}, {args.jobs} jobs: "
        f"{'right' if right else 'WRONG'} ({finding.reason}); {total:.1f} s, reading {read:.1f} s, CPU {ours:.1f} s; "
        f"bare Unpickler CPU {plain:.1f} s, without garbage collection {quick:.1f} s ({len(sample)} files): "
        f"ratio of CPU {ours / plain:.2f}, {ours / quick:.2f}, unpickling {quick / ours:.0%} of it; "
        f"at most {peak / (1 << 20):.2f} GiB",
        flush=True,
    )


if __name__ == "__main__":
    main()
