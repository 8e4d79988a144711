"""Sixteen real ranks on all four axes, small enough for two cores: the job behind `reftrain demo` and the samples.

Processes, communication, pipeline schedule and profiler are real; computing is emulated, because sixteen ranks that
compute on two cores take turns, and a slow one among them would only get more turns.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reftrain.config.file import load
from reftrain.config.run import RunConfig

WARM_UP = 2  # steps before the traced ones
DEFAULT_FAULT = "slow_compute:rank=5,factor=1.4"

LONG_SEQUENCES: dict[str, dict[str, Any]] = {
    "model": {"ffn_dim": 128},
    "data": {"seq_len": 256},
    "run": {"emulated_gflops": 0.056},
}
"""Overrides under which attention is a good part of the work, so that long documents show."""


def tables(steps: int) -> dict[str, dict[str, Any]]:
    """Configuration with `steps` traced steps: two layers, each on a pipeline stage, and four micro-batches.

    The feed-forward is wide and the step long, so that head and loss do not make the last stage a long one.
    """
    return {
        "model": {"preset": "tiny", "layers": 2, "ffn_dim": 1024, "vocab_size": 16},
        "mesh": {"tp": 2, "cp": 2, "pp": 2, "dp": 2},
        "data": {"seq_len": 64, "batch_size": 8, "padding": 0.0, "mean_document": 16},
        "evidence": {"trace_steps": list(range(WARM_UP, WARM_UP + steps)), "trace_nested": False},
        "run": {
            "steps": WARM_UP + steps,
            "compute": "emulated",
            "emulated_gflops": 0.03,
            "device": "cpu",
        },
    }


def demo_config(
    out: Path, steps: int, faults: Sequence[str], overrides: Mapping[str, Mapping[str, object]] | None = None
) -> RunConfig:
    """Configuration of a run into `out`; `overrides` go before it. Raises `ConfigError`."""
    merged = tables(steps)
    merged["evidence"]["faults"] = list(faults)
    merged["run"]["out"] = str(out)
    for table, values in (overrides or {}).items():
        merged.setdefault(table, {}).update(values)
    return load(None, merged)
