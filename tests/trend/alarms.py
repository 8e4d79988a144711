"""`python -m tests.trend.alarms --seeds 1000`: how often a trend is claimed of noise, and how often one is found.

A step varies by 3 % from window to window (1 % where something is planted); windows lie an hour apart.
"""

import argparse

import numpy as np

from tests.trend.test_statistics import STEP, noisy, series
from tracekit.analysis.trend import judge, significance, step
from tracekit.analysis.trend.step import step_trend

COUNTS = (8, 12, 16, 24, 48)


def shape(values):
    """What is claimed of the step: `drift`, `change`, `swing` or `none`."""
    found = step_trend(series(values))
    return "swing" if found.swing is not None and found.swing.proven else found.trend.shape


def main():
    parser = argparse.ArgumentParser(prog="python -m tests.trend.alarms", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000)
    parser.add_argument("--uncorrected", action="store_true", help="as if no window resembled the next")
    given = parser.parse_args()
    seeds = range(given.seeds)
    if given.uncorrected:
        for user in (judge, significance, step):
            user.serial_factor = lambda *_: 1.0
    for serial in (0.0, 0.3, 0.6):
        told = [
            np.mean([shape(noisy(s + 10_000, n, noise=0.03, serial=serial)) != "none" for s in seeds])
            for n in COUNTS
        ]
        print(
            f"noise, correlation {serial}: "
            + ", ".join(f"{n}: {t:.1%}" for n, t in zip(COUNTS, told, strict=True))
        )
    for name, course in (("drift of 5 %", np.linspace), ("change of 5 %", None)):
        told = []
        for n in COUNTS:
            rise = course(0, 0.05, n) if course else 0.05 * (np.arange(n) >= n // 2)
            told.append(np.mean([shape(noisy(s + 20_000, n) + STEP * rise) != "none" for s in seeds]))
        print(f"{name}: " + ", ".join(f"{n}: {t:.0%}" for n, t in zip(COUNTS, told, strict=True)))


if __name__ == "__main__":
    main()
