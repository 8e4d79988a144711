"""What capture costs: CPU time of a step with and without it, alternately in one process.

    python -m tests.numerics.capture_speed [--preset tiny] [--rounds 3] [--steps 4] [--profile]

One rank and one thread. The first step of a run is left out (it makes keys and signs); the best step of all rounds
counts, since other work on the machine only adds time.
"""

import argparse
import cProfile
import json
import pstats
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from reftrain.config.file import load
from reftrain.job.launcher import launch
from reftrain.rank.hooks import Hooks

SIZES: dict[str, dict[str, int]] = {
    "tiny": {"batch_size": 8, "micro_batch_size": 1},
    "small": {"batch_size": 8, "micro_batch_size": 1},
}


class Clock(Hooks):
    """CPU seconds of every step, the time between two steps included."""

    def __init__(self) -> None:
        self.begun: list[float] = []

    def step_begin(self, step: int) -> None:
        self.begun.append(time.process_time())

    def seconds(self) -> list[float]:
        return [end - begin for begin, end in zip(self.begun[1:], self.begun[2:], strict=False)]


def steps(preset: str, count: int, capture: str, out: Path) -> list[float]:
    """Return the CPU seconds of all steps but the first and the last."""
    tables: dict[str, dict[str, Any]] = {
        "model": {"preset": preset},
        "data": SIZES[preset],
        "run": {"out": str(out), "steps": count},
        "evidence": {"capture": capture},
    }
    clock = Clock()
    launch(load(None, tables), lambda _: [clock])
    return clock.seconds()


def measured(preset: str, rounds: int, count: int, folder: Path) -> dict[str, Any]:
    """Return the best step without and with capture, and their ratio."""
    best = {"": float("inf"), "digest": float("inf")}
    for number in range(rounds):
        for capture, least in best.items():
            found = steps(preset, count, capture, folder / f"{number}{capture}")
            best[capture] = min(least, *found)
    return {
        "preset": preset,
        "without_s": round(best[""], 4),
        "with_s": round(best["digest"], 4),
        "times": round(best["digest"] / best[""], 2),
    }


def main() -> None:
    """See the module's docstring."""
    parser = argparse.ArgumentParser(prog="python -m tests.numerics.capture_speed")
    parser.add_argument("--preset", default="tiny", choices=list(SIZES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--profile", action="store_true")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="capture-speed-"))
    try:
        if given.profile:
            with cProfile.Profile() as profile:
                steps(given.preset, given.steps, "digest", folder / "profiled")
            pstats.Stats(profile).sort_stats("tottime").print_stats(45)
        else:
            print(json.dumps(measured(given.preset, given.rounds, given.steps, folder)))
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
