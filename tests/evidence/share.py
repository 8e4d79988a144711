"""How many hangs their log alone decides, by kind: `python -m tests.evidence.share [--jobs 100] [--first 0]`.

Each job of the simulator leaves three logs: as torch writes it by default; with TORCH_NCCL_DESYNC_DEBUG=1; and that one
read with `--mesh`. right: the planted rank alone is named. narrowed: open, with the rank among at most two candidates.
"""

import argparse
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from math import prod
from pathlib import Path

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
LOGS = {"default": (False, False), "desync": (True, False), "desync, --mesh": (True, True)}
NARROW = 2


def outcome(case: simulate.Case, folder: Path, mesh: dict[str, int] | None) -> str:
    """Whether a log names the culprit, leaves a few candidates with it, leaves more, or names others."""
    found = gather(find_everything([str(folder)]).sources)
    finding = judge_evidence(found.bundle(prod(mesh.values()) if mesh else None), mesh)[0]
    named = {culprit.rank for culprit in finding.culprits}
    if named:
        return "right" if named == {case.culprit} else "wrong"
    return "narrowed" if case.culprit in finding.candidates and len(finding.candidates) <= NARROW else "open"


def outcomes(seeds: range) -> Iterator[tuple[str, str, str]]:
    """Yield log, kind and outcome of each job."""
    for seed in seeds:
        for name, (desync, with_mesh) in LOGS.items():
            case = simulate.make(seed, timed=desync)
            with tempfile.TemporaryDirectory() as folder:
                spelling = Spelling(NAMED[seed % len(NAMED)], desync=desync)
                places = record(Path(folder), case.write(Path(folder) / "fr"), spelling)
                yield name, KINDS[case.fault], outcome(case, places["log"], case.sizes if with_mesh else None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for name, kind, how in outcomes(range(args.first, args.first + args.jobs)):
        counts[name, kind][how] += 1
        counts[name, "all"][how] += 1
    print("| log | kind | jobs | right | narrowed | open | wrong |\n|---|---|---|---|---|---|---|")
    for (name, kind), of in counts.items():
        cells = [name, kind, of.total(), *(of[how] for how in ("right", "narrowed", "open", "wrong"))]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
