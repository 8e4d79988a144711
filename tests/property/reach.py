"""`python -m tests.property.reach`: how far each erasure of evidence reaches before the answer is lost.

Jobs are those of `tests.localise`, with somebody to blame and without, and the samples. Each job that is answered right
as recorded is asked again with one kind of evidence taken away. The answer survives (same culprit, or still healthy),
is open (inconclusive, or refused with a reason), or is wrong: another rank, a sick job called healthy, an alarm.

python -m tests.property.reach --cases 12 --seed 9000 --only 'titles' --only 'Seq'
"""

import argparse
import gzip
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

from tests.localise.case import make, save
from tests.property.taken_away import TAKEN, Trace
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.errors import TracekitError
from tracekit.ingest import load

SAMPLES = Path(__file__).parents[2] / "sample_traces"
SAMPLED = ("demo_healthy", "demo_slow_tp", "healthy", "slow_compute", "slow_link", "data_imbalance")
KINDS = ("slow_compute", "pauses", "healthy", "slow_link", "slow_compute", "slow_host")
WORDS = ("survives", "open", "wrong")
RANKS = 8


def read(folder: Path) -> dict[str, Trace]:
    """The traces in `folder` by file name."""
    found = {}
    for path in sorted(folder.rglob("*.json*")):
        data = path.read_bytes()
        found[path.name] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return found


def asked(traces: dict[str, Trace | bytes]) -> tuple[str, tuple[int, ...]]:
    """(verdict, ranks that are named) of traces written to an empty folder; a refusal is open."""
    folder = Path(tempfile.mkdtemp(prefix="reach-"))
    try:
        for name, trace in traces.items():
            data = trace if isinstance(trace, bytes) else json.dumps(trace).encode()
            (folder / name.removesuffix(".gz")).write_bytes(data)
        found = analyse(load([str(folder)]))
    except TracekitError:
        return "inconclusive", ()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found.verdict, tuple(s.rank for s in found.suspects)


def word(answer: tuple[str, tuple[int, ...]], culprits: set[int], whole: str) -> str:
    """One of WORDS for an answer; `whole` is the verdict on all evidence."""
    verdict, named = answer
    if verdict == "inconclusive":
        return "open"
    if not culprits:
        return "wrong" if named else "survives"
    if not named:
        return "survives" if verdict == whole != "healthy" else "wrong"
    return "survives" if named[0] in culprits else "wrong"


def jobs(cases: int, seed: int) -> list[tuple[str, dict[str, Trace], set[int]]]:
    """(name, traces, culprits) of the samples and of `cases` generated jobs."""
    found = []
    for name in SAMPLED:
        expected = json.loads((SAMPLES / name / "expected.json").read_text())
        culprits = {suspect["rank"] for suspect in expected["suspects"]}
        found.append((name, read(SAMPLES / name / "trace"), culprits))
    for number in range(cases):
        case = make(seed + number, KINDS[number % len(KINDS)], RANKS)
        folder = Path(tempfile.mkdtemp(prefix="reach-"))
        save(case, folder)
        found.append((f"{case.kind} {seed + number}, {case.form}", read(folder), set(case.culprits)))
        shutil.rmtree(folder)
    return found


def count(name: str, traces: dict[str, Trace], culprits: set[int], counts: dict[str, Counter[str]]) -> None:
    """Adds to `counts` what becomes of a job's answer, if it is right as recorded."""
    whole = asked(traces)
    if word(whole, culprits, whole[0]) != "survives":
        print(f"{name}: {whole[0]} {list(whole[1])} as recorded, left out", file=sys.stderr, flush=True)
        return
    for what, seen in counts.items():
        answer = asked(TAKEN[what](traces, Random(f"{name}-{what}")))
        seen[word(answer, culprits, whole[0])] += 1
        if word(answer, culprits, whole[0]) == "wrong":
            print(f"{name}, without {what}: {answer[0]} {list(answer[1])}", file=sys.stderr, flush=True)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--seed", type=int, default=9000)
    parser.add_argument("--only", action="append", choices=sorted(TAKEN))
    chosen = parser.parse_args()
    counts: dict[str, Counter[str]] = {what: Counter() for what in chosen.only or TAKEN}
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt):  # a pass that is ended says how far it came
        for name, traces, culprits in jobs(chosen.cases, chosen.seed):
            began = time.monotonic()
            count(name, traces, culprits, counts)
            print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    print("| taken away | " + " | ".join(WORDS) + " |\n|---|---|---|---|")
    for what, seen in counts.items():
        print(f"| {what} | " + " | ".join(str(seen[w]) for w in WORDS) + " |")
    return int(any(seen["wrong"] for seen in counts.values()))


if __name__ == "__main__":
    sys.exit(main())
