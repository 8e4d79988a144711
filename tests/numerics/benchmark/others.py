"""What is done without this tool, on the same runs: rules that look at losses, norms, gradients and activations.

Each says whether it calls the parallel run wrong. Their settings are the usual ones, not ours.
"""

import math
from pathlib import Path

import numpy as np
import torch

from numerics.schema import parse_boxes, parse_shape
from numerics.store import Capture, open_capture
from tests.numerics.benchmark.runs import metrics

RELATIVE = 1e-3
PERTURBATION = "perturbation x10"
MULTIPLE = 10.0
"""How many times the distance of the perturbed baseline a tensor may be away."""

KINDS = frozenset({"activation", "activation_grad", "param_grad"})
Tensors = dict[tuple[str, str], np.ndarray]


def verdicts(
    parallel: Path, baseline: Path, policy: str, perturbed: Path | None
) -> tuple[dict[str, bool | None], float | None]:
    """Whether each rule calls the parallel run wrong, None where it cannot be asked; and the largest distance of a
    tensor as a multiple of the perturbed baseline's."""
    mine, theirs = tensors(parallel), tensors(baseline)
    ours, its = (
        {name: t for (kind, name), t in one.items() if kind == "param_grad"} for one in (mine, theirs)
    )
    same = ours.keys() == its.keys() and bool(ours)
    eps = torch.finfo(torch.bfloat16 if policy.startswith("bf16") else torch.float32).eps
    multiple = None if perturbed is None or not same else largest(mine, theirs, tensors(perturbed), eps)
    return {
        "loss curve 1e-3": _apart(parallel, baseline, "loss"),
        "gradient norm 1e-3": _apart(parallel, baseline, "grad_norm"),
        "assert_close": any(not _close(ours[n], its[n], policy) for n in ours) if same else None,
        "relative 1e-3": any(_distance(ours[n], its[n]) > RELATIVE for n in ours) if same else None,
        PERTURBATION: None if multiple is None else not multiple <= MULTIPLE,
    }, multiple


def largest(mine: Tensors, theirs: Tensors, moved: Tensors, eps: float) -> float:
    """Largest distance of a tensor from the baseline's, as a multiple of what a perturbation of one unit in the last
    place of the embeddings does to it (after TTrace, arXiv 2506.09280, which derives its tolerances so)."""
    found = 0.0
    for key in mine.keys() & theirs.keys() & moved.keys():
        apart = _distance(mine[key], theirs[key])
        found = max(
            found, math.inf if math.isnan(apart) else apart / max(_distance(moved[key], theirs[key]), eps)
        )
    return found


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


def tensors(run: Path) -> Tensors:
    """Whole tensors of the first step by kind and name, put together from the ranks' parts; empty without values."""
    capture = open_capture(run)
    if capture.level != "tensors":
        return {}
    whole: Tensors = {}
    columns = ["step", "kind", "replica", "tensor", "global_shape", "boxes", "rank", "values", "partial"]
    for row in capture.table.select(columns).to_pylist():
        wanted = row["kind"] in KINDS and row["step"] == 0 and row["partial"] is None
        if wanted and row["replica"] == 0 and row["values"]:
            _put(capture, row, whole)
    return whole


def _put(capture: Capture, row: dict[str, object], whole: Tensors) -> None:
    shape = parse_shape(str(row["global_shape"]))
    target = whole.setdefault((str(row["kind"]), str(row["tensor"])), np.zeros(shape))
    flat = np.asarray(capture.read_values(int(str(row["rank"])), str(row["values"])), np.float64)
    start = 0
    for box in parse_boxes(str(row["boxes"])):
        place = tuple(slice(o, o + n) for o, n in zip(box.offsets, box.sizes, strict=True))
        target[place] = flat[start : start + box.numel].reshape(box.sizes)
        start += box.numel
