"""What is done without this tool, on the same runs: four rules that look at losses, norms and gradients.

Each says whether it calls the parallel run wrong. Their settings are the usual ones, not ours.
"""

from pathlib import Path

import numpy as np
import torch

from numerics.schema import parse_boxes, parse_shape
from numerics.store import Capture, open_capture
from tests.numerics.benchmark.runs import metrics

RELATIVE = 1e-3


def verdicts(parallel: Path, baseline: Path, policy: str) -> dict[str, bool | None]:
    """Whether each rule calls the parallel run wrong; None where it cannot be asked."""
    mine, theirs = gradients(parallel), gradients(baseline)
    same = mine.keys() == theirs.keys() and bool(mine)
    return {
        "loss curve 1e-3": _apart(parallel, baseline, "loss"),
        "gradient norm 1e-3": _apart(parallel, baseline, "grad_norm"),
        "assert_close": any(not _close(mine[n], theirs[n], policy) for n in mine) if same else None,
        "relative 1e-3": any(_distance(mine[n], theirs[n]) > RELATIVE for n in mine) if same else None,
    }


def _apart(parallel: Path, baseline: Path, name: str) -> bool:
    pairs = zip(metrics(parallel), metrics(baseline), strict=False)
    return any(not abs(a[name] - b[name]) <= RELATIVE * abs(b[name]) for a, b in pairs)


def _close(a: np.ndarray, b: np.ndarray, policy: str) -> bool:
    """torch.testing.assert_close with its defaults for the format of computation."""
    dtype = torch.bfloat16 if policy.startswith("bf16") else torch.float32
    try:
        torch.testing.assert_close(*(torch.from_numpy(x).to(dtype) for x in (a, b)))
    except AssertionError:
        return False
    return True


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(b)), 1e-30))


def gradients(run: Path) -> dict[str, np.ndarray]:
    """Whole gradients of the first step by name, put together from the ranks' shards; empty without values."""
    capture = open_capture(run)
    if capture.level != "tensors":
        return {}
    whole: dict[str, np.ndarray] = {}
    columns = ["step", "kind", "replica", "tensor", "global_shape", "boxes", "rank", "values", "partial"]
    for row in capture.table.select(columns).to_pylist():
        if row["kind"] == "param_grad" and row["step"] == 0 and row["replica"] == 0 and row["values"]:
            _put(capture, row, whole)
    return whole


def _put(capture: Capture, row: dict[str, object], whole: dict[str, np.ndarray]) -> None:
    shape = parse_shape(str(row["global_shape"]))
    target = whole.setdefault(str(row["tensor"]), np.zeros(shape))
    flat = np.asarray(capture.read_values(int(str(row["rank"])), str(row["values"])), np.float64)
    start = 0
    for box in parse_boxes(str(row["boxes"])):
        place = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))
        target[place] = flat[start : start + box.numel].reshape(box.sizes)
        start += box.numel
