"""Measures the cost of planted slow faults: trains once more with the same seeds and without them.

run.json holds the lag with the faults, so that an analysis can be judged by the true cost.
"""

import dataclasses
import json
import math
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from reftrain.config.fault_kinds import HANGS
from reftrain.config.fault_spec import kind_of, slow_faults
from reftrain.config.run import RunConfig
from reftrain.record.manifest import read_manifest, write_manifest

Train = Callable[[RunConfig], None]
"""Runs the whole job of a configuration."""


def wants_lag(config: RunConfig) -> bool:
    """Return whether to measure the cost of slow faults: not where the run hangs or resumes from a checkpoint."""
    kinds = {kind_of(text) for text in config.evidence.faults}
    slow = bool(slow_faults(config.evidence.faults))
    return slow and config.evidence.measure_lag and not kinds & HANGS and not config.checkpoint.resume


def record_lag(config: RunConfig, train: Train) -> None:
    """Train without the slow faults and write the difference into the finished run's run.json.

    The second run leaves nothing else. Raises OSError, and what `train` raises.
    """
    out = Path(config.out)
    with tempfile.TemporaryDirectory(prefix=".without-faults-", dir=out) as folder:
        train(without_slow_faults(config, folder))
        steps = compared_steps(config)
        slow, usual = (step_ms(Path(run), steps) for run in (out, folder))
    manifest = read_manifest(out)
    if manifest is None:
        return
    with_faults, without = mean(slow), mean(usual)
    lag = with_faults - without
    manifest["lag"] = {
        "steps": steps,
        "step_ms": round(with_faults, 3),
        "step_ms_without_faults": round(without, 3),
        "lag_ms": round(lag, 3),
        "lag_share": round(lag / with_faults, 4) if with_faults else 0.0,
        "lag_ms_error": round(error_of_difference(slow, usual), 3),
    }
    write_manifest(out, manifest)


def without_slow_faults(config: RunConfig, folder: str) -> RunConfig:
    """Return the configuration of the same run in another folder, without slow faults and checkpoints."""
    slow = set(slow_faults(config.evidence.faults))
    kept = tuple(text for text in config.evidence.faults if text not in slow)
    return dataclasses.replace(
        config,
        out=folder,
        evidence=dataclasses.replace(config.evidence, faults=kept),
        checkpoint=dataclasses.replace(config.checkpoint, every=0),
    )


def compared_steps(config: RunConfig) -> list[int]:
    """Return the steps to compare the times of: the traced ones, else all but the first, which warms up."""
    if config.evidence.trace_steps:
        return list(range(min(config.evidence.trace_steps), max(config.evidence.trace_steps) + 1))
    return list(range(1, config.steps)) or [0]


def step_ms(run: Path, steps: list[int]) -> list[float]:
    """Return each step's time in milliseconds, mean over the ranks; an unrecorded step is left out."""
    times: dict[int, list[float]] = {}
    for path in sorted((run / "metrics").glob("rank*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row["step"] in steps:
                times.setdefault(row["step"], []).append(row["step_s"] * 1e3)
    return [statistics.fmean(times[step]) for step in sorted(times)]


def mean(times: list[float]) -> float:
    """Return the mean, or 0 of no times."""
    return statistics.fmean(times) if times else 0.0


def error_of_difference(slow: list[float], usual: list[float]) -> float:
    """Return the standard error of the difference of two means, from the spread of the steps; 0 for single steps."""
    squares = [statistics.variance(times) / len(times) for times in (slow, usual) if len(times) > 1]
    return math.sqrt(sum(squares))
