"""`python -m tests.outside.frozen`: real runs with one rank stopped or frozen for ever, asked of `tracekit hang`.

Nothing in the trainer knows of it: SIGSTOP or the kernel's freezer holds one process at a random moment until the
others have run into their time-out. Its dump is the one that it wrote last, or is taken away.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import tracekit
from reftrain.record.last_calls import merge_last_calls
from tests.outside.job import RANKS, WARM_UP, Job, Setting, alive, write_data
from tests.ranks.patience import patience
from tests.ranks.pool import RankPool

FREEZER = Path("/sys/fs/cgroup/freezer")
MESHES = ("tp=2,dp=2", "cp=2,pp=2", "pp=2,dp=2", "tp=4")
LIMIT_S = 8
_FAST = ("run.emulated_gflops=2", f"evidence.timeout_s={LIMIT_S}", "evidence.flight_recorder=true")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process by a signal until the block ends."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """Freeze a process in a control group of its own until the block ends."""
    group = FREEZER / f"outside{pid}"
    group.mkdir()
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "freezer.state").write_text("FROZEN")
        yield
    finally:
        (group / "freezer.state").write_text("THAWED")
        with contextlib.suppress(OSError):
            (FREEZER / "cgroup.procs").write_text(str(pid))
        for _ in range(100):  # a process that was killed leaves its group when it is gone
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


HOLDS: dict[str, Callable[[int], contextlib.AbstractContextManager[None]]] = {
    "stopped": stopped,
    "frozen": frozen,
}


def unavailable(name: str) -> str:
    """Return why a rank cannot be held so here, or nothing."""
    if name == "frozen" and not os.access(FREEZER / "cgroup.procs", os.W_OK):
        return "no freezer (cgroup v1) that this user may write to"
    return ""


def hang(pool: RankPool, folder: Path, data: Path, mesh: str, hold: str, victim: int, after_s: float) -> None:
    """Train, hold one rank `after_s` seconds after the warm-up, and end all once another has run into its time-out.

    A launcher ends the ranks that are left, too: one that receives from the rank may wait for ever.
    """
    more = [part for text in _FAST for part in ("--set", text)]
    job = Job(pool, folder, data, mesh, Setting(), "--steps", "100000", *more)
    others = [rank for number, rank in enumerate(job.ranks) if number != victim]
    try:
        if not job.wait_for(WARM_UP, 120):
            job.finish(5)
        time.sleep(after_s)
        with HOLDS[hold](job.ranks[victim].pid):
            end = time.monotonic() + patience(60) + LIMIT_S
            while all(alive(rank.pid) for rank in others):
                if time.monotonic() > end:
                    raise RuntimeError("no rank ran into its time-out")
                time.sleep(0.1)
            time.sleep(LIMIT_S)
            job.kill()
    finally:
        job.kill()


def asked(dumps: Path, victim: int, *, its_dump: bool) -> tuple[str, str]:
    """Return (right, open or wrong; what was answered) of the dumps, with or without that of the rank that was held."""
    merge_last_calls(dumps)  # as the launcher does where it starts the ranks itself
    paths = [str(p) for p in sorted(dumps.iterdir()) if its_dump or p.name.split(".")[0] != f"rank_{victim}"]
    finding = tracekit.hang(tracekit.load_dumps(paths))
    named = {culprit.rank: culprit.kind for culprit in finding.culprits}
    kinds = {"host_stalled"} if its_dump else {"host_stalled", "missing_dump"}
    worth = "right" if set(named) == {victim} and set(named.values()) <= kinds else "wrong"
    if not named:
        worth = "open"
    said = ", ".join(f"rank {rank} {kind}" for rank, kind in named.items())
    return worth, said or f"{finding.verdict}: {finding.reason}"


def main() -> int:
    """Run what is asked for and print a row a run; return 0 also where answers are wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.outside.frozen", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2, help="runs of each mesh and way")
    parser.add_argument("--keep", type=Path, help="folder that keeps the dumps; those in it are asked again")
    options = parser.parse_args()
    rng, pool, counts = random.Random(41), RankPool(), dict[str, int]()
    print("| mesh | rank 1 to 3 is | with its last dump | without its dump |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="frozen-") as scratch:
        keep = (options.keep or Path(scratch)).resolve()
        data = write_data(keep / "data")
        for number in range(options.rounds):
            for mesh, hold in ((m, h) for m in MESHES for h in HOLDS if not unavailable(h)):
                victim, after_s = rng.randrange(1, RANKS), rng.uniform(0.0, 1.0)
                folder = keep / f"{mesh}_{hold}_{number}"
                try:
                    if not (folder / "fr").exists():
                        hang(pool, folder, data, mesh, hold, victim, after_s)
                    rows = [asked(folder / "fr", victim, its_dump=own) for own in (True, False)]
                except (RuntimeError, AssertionError, OSError, tracekit.TracekitError) as error:
                    rows = [("failed", " ".join(str(error).split())[-200:])] * 2
                for worth, _ in rows:
                    counts[worth] = counts.get(worth, 0) + 1
                cells = " | ".join(f"{worth}: {said}" for worth, said in rows)
                print(f"| {mesh} | {victim}: {hold} | {cells} |", flush=True)
    pool.close()
    print(f"\n{', '.join(f'{count} {worth}' for worth, count in counts.items())}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
