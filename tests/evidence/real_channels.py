"""Real hangs and deaths of the trainer on Gloo, recorded in all channels: `python -m tests.evidence.real_channels`.

Each run leaves dumps, logs, stacks and counters; NCCL's RAS, which Gloo has not, is written of its dumps. Every subset
of the channels is asked. A row a run: what logs alone answer, and of how many subsets the answer is right, open, wrong.
`--keep FOLDER` keeps the runs; a later call asks the kept runs again and trains only the others.
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from tests.evidence.judged import answer, ranks
from tests.evidence.other_channels import ras_json
from tests.evidence.stuck_job import states
from tests.hang.real_hangs import train
from tests.ranks.patience import patience
from tests.ranks.pool import RankPool

CHANNELS = ("dump", "log", "ras", "stacks", "counters")
SUBSETS = [some for n in range(1, len(CHANNELS) + 1) for some in combinations(CHANNELS, n)]
KINDS = ("host_stall", "hold_gil", "crash", "wrong_size", "skip_collective")
LATER_KINDS = ("stop", "out_of_memory", "stuck_io", "deadlock", "leave")
PLACES = (
    ("tp", 3, "tp=2,pp=2"),
    ("tp", 1, "tp=4"),
    ("cp", 2, "cp=2,dp=2"),
    ("pp", 3, "pp=2,dp=2"),
    ("pp", 1, "tp=2,pp=2"),
    ("dp", 2, "dp=4"),
)
RUNS = [(kind, *place) for kind in (*KINDS, *LATER_KINDS) for place in PLACES]


@dataclass
class Recorded:
    """A run that hung: the planted rank, and the folder of each channel."""

    kind: str
    axis: str
    rank: int
    places: dict[str, Path]

    def named(self, channels: tuple[str, ...]) -> str:
        """Whether these channels name the planted rank alone, none, or others."""
        found = ranks(answer(self.places, channels, strict=False))
        return "right" if found == [self.rank] else "wrong" if set(found) - {self.rank} else "open"

    def outcomes(self) -> Counter[str]:
        """How many subsets of the channels are right, open and wrong."""
        return Counter(self.named(channels) for channels in SUBSETS)


def channels_of(folder: Path, kind: str, axis: str, rank: int) -> Recorded:
    """The channels in the folder of a run that hung.

    Of a rank that Gloo aborted there is no RAS answer: NCCL checks no size, and ends no process for one.
    """
    places = {name: folder / name for name in ("log", "stacks", "counters", "ras")} | {"dump": folder / "fr"}
    places["ras"].mkdir(exist_ok=True)
    aborted = any("SIGABRT" in path.read_text() for path in places["log"].glob("launcher.log"))
    job = states(places["dump"])
    for number in range(0 if aborted else 2):
        (places["ras"] / f"{number}.json").write_text(ras_json(job, f"2026-11-18 04:0{number}:00"))
    return Recorded(kind, axis, rank, places)


def recorded(pool: RankPool, folder: Path, run: tuple[str, str, int, str], timeout_s: float) -> Recorded:
    """Run the trainer into a hang with all channels on."""
    kind, axis, rank, mesh = run
    train(pool, folder, kind, axis, rank, mesh=mesh, step=1, timeout_s=timeout_s)
    return channels_of(folder, kind, axis, rank)


def rows(
    pool: RankPool, runs: list[tuple[str, str, int, str]], timeout_s: float, keep: Path
) -> Iterator[Recorded]:
    """Record each run in a folder of its own below `keep`; one that is there is not recorded again."""
    for number, run in enumerate(runs):
        folder = keep / "-".join(map(str, run))
        kind, axis, rank, _ = run
        if not (folder / "ras").exists():
            shutil.rmtree(folder, ignore_errors=True)
            print(f"{number + 1} of {len(runs)}: {folder.name}", file=sys.stderr, flush=True)
            yield recorded(pool, folder, run, timeout_s)
        else:
            yield channels_of(folder, kind, axis, rank)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--kinds", default=",".join((*KINDS, *LATER_KINDS)))
    parser.add_argument("--keep", type=Path, help="where runs stay, and are found again")
    args = parser.parse_args()
    pool, logs, every = RankPool(), Counter[str](), Counter[str]()
    runs = [run for run in RUNS if run[0] in args.kinds.split(",")]
    print("| kind | axis | planted | log alone | right | open | wrong |\n|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for one in rows(pool, runs, patience(2), args.keep or Path(folder)):
            found, alone = one.outcomes(), one.named(("log",))
            logs[alone] += 1
            every += found
            cells = [one.kind, one.axis, one.rank, alone, found["right"], found["open"], found["wrong"]]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)
            for channels in SUBSETS if found["wrong"] else ():
                finding = answer(one.places, channels, strict=False)
                if set(ranks(finding)) - {one.rank}:
                    print("   ", channels, finding.headline(), file=sys.stderr, flush=True)
    pool.close()
    print(f"subsets: {dict(every)}; logs alone: {dict(logs)}")


if __name__ == "__main__":
    main()
