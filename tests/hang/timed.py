"""Flight-recorder dumps of the generator's jobs: what NCCL's recorder keeps of the same run that a trace shows.

The communication kernels of a generated trace become entries: issued when the host launched them, with the
device's exact duration, discovered by a watchdog that polls. `python -m tests.hang.timed --cases 60 --seed 1`
marks `tracekit slowrank` on such dumps as tests.accuracy marks it on traces.
"""

import argparse
import pickle
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa

from tests.accuracy.__main__ import plan
from tests.accuracy.score import OUTCOMES, brief, describe, judge
from tests.generator import generate
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.errors import TracekitError
from tracekit.ingest import load
from tracekit.rank_events.operations import read_rank

POLL_NS = 100_000_000
DESCS = {"tp": "TENSOR_MODEL_PARALLEL_GROUP", "cp": "CONTEXT_PARALLEL_GROUP", "dp": "DATA_PARALLEL_GROUP"}


def dumps_of(run, poll_ns=POLL_NS, ring=None, duration=True):
    """Dumps by rank of an ingested run; `poll_ns` 0 writes exact times of start and end.

    ring: entries kept; by default nine tenths of the longest rank's, so that rings reach back unequally.
    """
    if ring is None:
        ring = max(len(read_rank(run, r.rank).start) for r in run.ranks) * 9 // 10
    return {r.rank: dump_of(run, r.rank, poll_ns, ring, duration) for r in run.ranks}


def dump_of(run, rank, poll_ns, ring, duration):
    ops = read_rank(run, rank)
    events = run.events(rank)
    launches = launch_times(events)
    groups = [g for g in run.groups if rank in g.ranks and len(g.ranks) > 1]
    local = {g.group: i for i, g in enumerate(groups)}
    entries, counts = [], Counter()
    phase = rank * 7_919_000 % max(poll_ns, 1)
    for i in np.argsort(ops.start, kind="stable").tolist():
        group = int(ops.group[i])
        p2p = ops.op[i] in ("send", "recv")
        if p2p:
            peer = int(ops.dst[i] if ops.op[i] == "send" else ops.src[i])
            group = min((g for g in groups if peer in g.ranks), key=lambda g: len(g.ranks)).group
        if group not in local:
            continue
        ranks = run.groups[group].ranks
        counts[group, p2p] += 1
        start, end = int(ops.start[i]), int(ops.end[i])
        seen = end if not poll_ns else (end - phase + poll_ns - 1) // poll_ns * poll_ns + phase
        name = ops.op[i]
        if p2p:
            name += f" {ranks.index(rank)}{'->' if name == 'send' else '<-'}{ranks.index(peer)}"
        dtype = ops.token[i].split("/")[1]
        entries.append(
            {
                "record_id": len(entries),
                "pg_id": local[group],
                "process_group": (f"{group}", ",".join(run.groups[group].descs)),
                "collective_seq_id": 0 if p2p else int(ops.seq[i]) if ops.seq[i] >= 0 else counts[group, p2p],
                "p2p_seq_id": counts[group, p2p] if p2p else 0,
                "op_id": counts[group, p2p],
                "profiling_name": f"nccl:{name}",
                "time_created_ns": min(launches.get(start, start), start),
                "time_discovered_started_ns": start if not poll_ns else seen,
                "time_discovered_completed_ns": seen,
                "input_sizes": [[int(ops.nelems[i])]],
                "output_sizes": [[int(ops.nelems[i])]],
                "input_dtypes": [dtype],
                "output_dtypes": [dtype],
                "state": "completed",
                "retired": True,
                "is_p2p": p2p,
                "timeout_ms": 600000,
                **({"duration_ms": (end - start) / 1e6} if duration else {}),
            }
        )
    config = {
        str(g.group): {"name": str(g.group), "desc": ",".join(g.descs), "ranks": str(list(g.ranks))}
        for g in groups
    }
    return {"version": "2.9", "rank": rank, "pg_config": config, "pg_status": {}, "entries": entries[-ring:]}


def launch_times(events):
    """When the host launched the kernel that starts at a time."""
    cat = np.array(events.column("cat").cast(pa.string()).to_pylist())
    correlation = np.array([c if c is not None else -1 for c in events.column("correlation").to_pylist()])
    ts = events.column("ts").to_numpy()
    host = {c: t for c, t, k in zip(correlation, ts, cat, strict=True) if k.startswith("cuda_") and c >= 0}
    return {
        int(t): int(host[c])
        for c, t, k in zip(correlation, ts, cat, strict=True)
        if k == "kernel" and c in host
    }


def write(dumps, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for rank, dump in dumps.items():
        (folder / f"dump_{rank}").write_bytes(pickle.dumps(dump, protocol=2))
    return folder


def mark(seed, kind, poll_ns=POLL_NS):
    case = generate(
        seed, kind=kind, seq=True, pg_config=True, truncated={}, split=False, ragged=False, missing=set()
    )
    with tempfile.TemporaryDirectory(prefix="timed-") as folder:
        case.write(Path(folder) / "traces")
        try:
            run = load([f"{folder}/traces"])
            write(dumps_of(run, poll_ns), Path(folder) / "fr")
            finding = analyse(load([f"{folder}/fr"]))
        except TracekitError as error:
            return case.truth, "refused", str(error), None
    return case.truth, judge(case.truth, finding), brief(finding), finding


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--poll-ms", type=float, default=POLL_NS / 1e6)
    args = parser.parse_args()
    outcomes = {}
    for seed, kind in plan(args.cases, args.seed, None):
        truth, outcome, answer, _ = mark(seed, kind, int(args.poll_ms * 1e6))
        outcomes.setdefault(kind, Counter())[outcome] += 1
        if outcome != "right":
            print(f"seed {seed} {kind}: {outcome}\n   {describe(truth)}\n   {answer}", flush=True)
    for kind, counts in sorted(outcomes.items()):
        print(f"{kind:<14}", {o: counts[o] for o in OUTCOMES if counts[o]})


if __name__ == "__main__":
    main()
