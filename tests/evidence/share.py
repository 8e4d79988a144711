"""How many hangs their log alone decides, by kind: `python -m tests.evidence.share [--jobs 100] [--first 0]`.

Each job of the simulator leaves logs: as torch writes it by default; with TORCH_NCCL_DESYNC_DEBUG=1; that one read with
`--mesh`; and with NCCL's lines of calls: with ids of communicators, without, and with numbers that stay 0 within a node
(2.30). right: the planted rank alone is named. narrowed: open, the rank among at most two candidates.
"""

import argparse
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from math import prod
from pathlib import Path

from tests.evidence import nccl_lines
from tests.evidence.judged import record
from tests.evidence.watchdog import NAMED, Spelling
from tests.hang import simulate
from tracekit.analysis.hang.witnesses.judge import judge_evidence
from tracekit.evidence.gather import find_everything, gather

KINDS = {
    "host_stall": "stall",
    "crash": "death",
    "device_unseen": "device",
    "device_unstarted": "device",
    "wrong_size": "mismatch",
    "wrong_op": "mismatch",
    "skip": "mismatch",
}
LOGS = {
    "default": (False, False, ()),
    "desync": (True, False, ()),
    "desync, --mesh": (True, True, ()),
    "calls": (False, False, nccl_lines.VERSIONS[1:3]),
    "calls, 2.30": (False, False, nccl_lines.VERSIONS[3:]),
    "calls, no ids": (False, False, nccl_lines.VERSIONS[:1]),
    "calls, desync": (True, False, nccl_lines.VERSIONS[1:3]),
}
NARROW = 2


def outcome(case: simulate.Case, folder: Path, mesh: dict[str, int] | None) -> str:
    """Whether a log names the culprit, leaves a few candidates with it, leaves more, or names others."""
    found = gather(find_everything([str(folder)]).sources)
    finding = judge_evidence(found.bundle(prod(mesh.values()) if mesh else None), mesh)[0]
    named = {culprit.rank for culprit in finding.culprits}
    if named:
        return "right" if named == {case.culprit} else "wrong"
    return "narrowed" if case.culprit in finding.candidates and len(finding.candidates) <= NARROW else "open"


def outcomes(seeds: range, logs: Iterable[str] = tuple(LOGS)) -> Iterator[tuple[str, str, str]]:
    """Yield log, kind and outcome of each job."""
    for seed in seeds:
        for name in logs:
            desync, with_mesh, versions = LOGS[name]
            case = simulate.make(seed, timed=desync)
            with tempfile.TemporaryDirectory() as folder:
                spelling = Spelling(NAMED[seed % len(NAMED)], desync=desync)
                places = record(Path(folder), case.write(Path(folder) / "fr"), spelling)
                if versions:
                    calls = nccl_lines.one_log(Path(folder) / "fr", versions[seed % len(versions)])
                    (places["log"] / "nccl.out").write_text(calls)
                how = outcome(case, places["log"], case.sizes if with_mesh else None)
                if how == "wrong":
                    print(f"wrong: {name}, {seed}", flush=True)
                yield name, KINDS[case.fault], how


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--logs", default=";".join(LOGS), help="which logs, joined by semicolons")
    args = parser.parse_args()
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for name, kind, how in outcomes(range(args.first, args.first + args.jobs), args.logs.split(";")):
        counts[name, kind][how] += 1
        counts[name, "all"][how] += 1
    print("| log | kind | jobs | right | narrowed | open | wrong |\n|---|---|---|---|---|---|---|")
    for (name, kind), of in counts.items():
        cells = [name, kind, of.total(), *(of[how] for how in ("right", "narrowed", "open", "wrong"))]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
