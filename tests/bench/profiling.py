"""What recording costs a step on `small`: `python -m tests.bench.profiling` (about three minutes on two cores).

Runs with and without the profiler (and, with --flight, the flight recorder) take turns in one process; step times after
the warm-up are compared, so that a machine that becomes slower meanwhile does not decide.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from reftrain.config.file import load
from reftrain.job.launcher import launch

STEPS = 7
COMPARED = range(3, STEPS)  # the profiler starts in step 2


def step_times(**evidence: object) -> list[float]:
    """Seconds of the compared steps, over both ranks."""
    with tempfile.TemporaryDirectory(prefix="profiling-") as folder:
        tables = {"mesh": {"tp": 2}, "data": {"batch_size": 2}, "run": {"steps": STEPS, "out": folder}}
        launch(load(None, {"model": {"preset": "small"}, **tables, "evidence": evidence}), lambda _: [])
        rows = [
            json.loads(line) for p in Path(folder, "metrics").iterdir() for line in p.read_text().splitlines()
        ]
    return [row["step_s"] for row in rows if row["step"] in COMPARED]


def main() -> None:
    """Alternate and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--flight", action="store_true", help="measure the flight recorder instead")
    given = parser.parse_args()
    recording = {"flight_recorder": True} if given.flight else {"trace_steps": list(range(2, STEPS))}
    plain: list[float] = []
    recorded: list[float] = []
    for _ in range(given.pairs):
        plain += step_times()
        recorded += step_times(**recording)
    a, b = statistics.median(plain), statistics.median(recorded)
    print(f"plain {a * 1e3:.0f} ms, recorded {b * 1e3:.0f} ms a step: {b / a - 1:+.1%}")


if __name__ == "__main__":
    main()
