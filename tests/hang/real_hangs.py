"""Real hangs of the reference trainer on Gloo: five kinds on every axis, answered by `tracekit hang`.

`python -m tests.hang.real_hangs --out FOLDER [--kinds crash,skip_collective] [--axes tp,dp] [--ranks tp=14]` trains 16
ranks for a few steps each time, plants the hang, and prints a row a run, with what torchfrtrace says of the same dumps
beside it.
"""

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from tests.ranks.pool import RankPool
from tracekit.analysis.hang.analyse import analyse
from tracekit.dumps.load import load_dumps

KINDS = {
    "skip_collective": {"host_stalled"},
    "host_stall": {"host_stalled"},
    "hold_gil": {"host_stalled"},
    "wrong_size": {"mismatched_call"},
    "crash": {"host_stalled", "missing_dump"},
}
RANKS = {"tp": 5, "cp": 10, "pp": 3, "dp": 12}
SMALL = (
    "--preset",
    "tiny",
    "--set",
    "model.layers=2",
    "--set",
    "data.seq_len=64",
    "--set",
    "data.batch_size=8",
)


@dataclass
class Outcome:
    """One run: what was planted, what was answered."""

    kind: str
    axis: str
    rank: int
    verdict: str
    named: list[int]
    kinds: list[str]
    reason: str
    seconds: float

    @property
    def right(self) -> bool:
        return self.named == [self.rank] and set(self.kinds) <= KINDS[self.kind]


def train(pool, folder, kind, axis, rank, mesh="tp=2,cp=2,pp=2,dp=2", step=2, timeout_s=15.0):
    """Run the trainer into the hang; returns the folder of dumps."""
    job = pool.reftrain(
        *("run", *SMALL, "--mesh", mesh, "--quiet"),
        *("--steps", step + 2, "--fault", f"{kind}:rank={rank},axis={axis},steps={step}"),
        *("--set", f"evidence.timeout_s={timeout_s}", "--out", folder),
    )
    done = job.wait(135 + timeout_s)
    if done.returncode != 3 or ("Error" in done.stderr and kind != "out_of_memory"):
        raise RuntimeError(f"the trainer did not hang ({done.returncode}): {done.stderr[-800:]}")
    return folder / "fr"


def stock(dumps):
    """Ranks that torch's own analyser calls missing in a collective, or culprits of a mismatch."""
    program = Path(sys.executable).with_name("torchfrtrace")
    command = [str(program), str(dumps), "--prefix", "rank_", "--allow-incomplete-ranks"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    text = done.stdout + done.stderr
    if "Traceback" in text:
        return [-1]
    named = re.findall(r"missing ranks: \{([\d, ]+)\}", text)
    named += re.findall(r"[Cc]ulprit rank:? (\d+)", text)
    return sorted({int(n) for part in named for n in part.split(",")})


def run(pool, folder, kind, axis, rank, **options):
    """Run into the hang and judge the dumps."""
    began = time.perf_counter()
    dumps = train(pool, folder, kind, axis, rank, **options)
    finding = analyse(load_dumps([str(dumps)]))
    named, kinds = [c.rank for c in finding.culprits], [c.kind for c in finding.culprits]
    seconds = time.perf_counter() - began
    return Outcome(kind, axis, rank, finding.verdict, named, kinds, finding.reason, seconds)


def dropped(dumps, rank, times):
    """How often (right, inconclusive, an innocent named) with one to three victims' files gone, `times` each."""
    rng = random.Random(5)
    files = sorted(dumps.iterdir())
    victims = [path for path in files if path.name != f"rank_{rank}"]
    counts = [0, 0, 0]
    for number in range(3 * times):
        gone = rng.sample(victims, 1 + number % 3)
        finding = analyse(load_dumps([str(path) for path in files if path not in gone]))
        named = {c.rank for c in finding.culprits}
        counts[2 if named - {rank} else 0 if named else 1] += 1
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--axes", default=",".join(RANKS))
    parser.add_argument("--ranks", default="", help="where to plant, by axis")
    parser.add_argument("--json", type=Path, help="append a line a run")
    parser.add_argument(
        "--drops", type=int, default=0, help="also judge so often with 1, 2 and 3 victims' files gone"
    )
    args = parser.parse_args()
    rights, without, pool = 0, [0, 0, 0], RankPool()
    ranks = RANKS | {a: int(r) for a, r in (part.split("=") for part in args.ranks.split(",") if part)}
    jobs = [(k, a) for k in args.kinds.split(",") for a in args.axes.split(",")]
    print("| kind | axis | planted | named | kind named | right | torchfrtrace names |")
    print("|---|---|---|---|---|---|---|")
    for kind, axis in jobs:
        folder = args.out / f"{kind}_{axis}"
        shutil.rmtree(folder, ignore_errors=True)
        row = run(pool, folder, kind, axis, ranks[axis])
        rights += row.right
        others = stock(folder / "fr")
        told = ", ".join(map(str, others)) if others != [-1] else "fails with a traceback"
        print(
            f"| {kind} | {axis} | {row.rank} | {', '.join(map(str, row.named)) or '-'} | "
            f"{', '.join(sorted(set(row.kinds))) or row.verdict} | {'yes' if row.right else 'NO'} | {told or '-'} |",
            flush=True,
        )
        if not row.right:
            print(f"    {row.reason}", file=sys.stderr, flush=True)
        if args.drops:
            found = dropped(folder / "fr", row.rank, args.drops)
            without = [a + b for a, b in zip(without, found, strict=True)]
        if args.json:
            with args.json.open("a") as file:
                file.write(json.dumps({**vars(row), "stock": others}) + "\n")
    pool.close()
    print(f"{rights} of {len(jobs)} right")
    if args.drops:
        print(
            "with victims' files gone: {} right, {} inconclusive, {} with an innocent named".format(*without)
        )


if __name__ == "__main__":
    main()
