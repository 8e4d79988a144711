"""Finds what forbids comparing the bits of two runs: another computation, or another kind of machine.

The mesh, the schedule, micro-batches, recomputation, kernels, the optimiser's implementation and its place may differ:
comparisons are made for these. Model, data, steps, seeds, number formats and the optimiser's settings must be the same.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from numerics.columns import Columns
from numerics.comparison.joins.tensor_table import TensorTable
from numerics.schema import REFUSES
from numerics.store import Capture
from numerics.thresholds.comparison import THREADED_SUM
from numerics.thresholds.report import LONGEST_VALUE

_FREE: Final = {
    "model": {"preset", "fused_qkv", "pad_vocab", "replicate_kv"},
    "data": {"micro_batch_size", "micro_batches"},
    "optimizer": {"implementation", "offload"},
}
"""Fields of a run's manifest that change the order of sums or the layout, but not the computation."""

_NUMERICS: Final = ("policy", "document_mask", "label_smoothing")
_THREADED: Final = f"{THREADED_SUM:,}".replace(",", " ")
_LAYOUT: Final = {"mesh", "parallel", "layout", "schedule"}
"""Tables of a free-form configuration (of a trainer without run.json) that only describe the layout of the work."""


def why_incomparable(left: Capture, right: Capture, *, same_run: bool = False) -> str | None:
    """Return the first reason that forbids comparing bits, as a sentence; None where there is none.

    `same_run` is for a run and its replay, which must also agree in the fields that are free otherwise.
    """
    return _environments(left, right) or _configurations(left, right, same_run=same_run)


def thread_note(left: Capture, right: Capture) -> str | None:
    """Return a note where thread counts differ, which changes sums over more than `THREADED_SUM` elements only."""
    mine, other = left.environment.get("threads"), right.environment.get("threads")
    if mine == other:
        return None
    counts = f"thread counts differ ({mine} and {other})"
    return f"{counts}: sums over more than {_THREADED} elements may differ by that alone"


def _environments(left: Capture, right: Capture) -> str | None:
    reference = left.environment
    for capture in (left, right):
        for environment, ranks in capture.environments:
            for field in REFUSES:
                if environment.get(field) != reference.get(field):
                    return (
                        f"the environments differ in {field}: {_short(reference.get(field))} in {left.folder}, "
                        f"{_short(environment.get(field))} in {capture.folder} (rank {ranks[0]}); "
                        "bits may differ for that alone"
                    )
    return None


def _configurations(left: Capture, right: Capture, *, same_run: bool) -> str | None:
    a, b = left.config, right.config
    if a is None or b is None:
        return None
    mine, other = dict(_leaves(a, same_run=same_run)), dict(_leaves(b, same_run=same_run))
    for name in sorted(mine.keys() | other.keys()):
        if mine.get(name) != other.get(name):
            return (
                f"the runs do not compute the same thing: {name} is {_short(mine.get(name))} in {left.folder} "
                f"and {_short(other.get(name))} in {right.folder}"
            )
    return None


def _leaves(config: Mapping[str, Any], *, same_run: bool) -> Iterator[tuple[str, Any]]:
    """Yield the fields that must be equal, by dotted name."""
    if config.get("schema") == "reftrain.run/1":
        for table in ("model", "data", "optimizer", "numerics", "seeds"):
            fields = config.get(table)
            for name, value in (fields if isinstance(fields, dict) else {}).items():
                free = name in _FREE.get(table, ()) or (table == "numerics" and name not in _NUMERICS)
                if same_run or not free:
                    yield f"{table}.{name}", value
        yield "dtype_policy", config.get("dtype_policy")
        if not same_run:  # a replay may stop early
            yield "steps", config.get("steps")
        return
    for name, value in config.items():
        if name not in _LAYOUT or same_run:
            yield from _flat(str(name), value)


def _flat(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from _flat(f"{name}.{key}", inner)
    else:
        yield name, value


def _short(value: Any) -> str:
    text = "not said" if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def other_model(run: Columns, tensors: TensorTable, baseline: Columns) -> str | None:
    """Return a sentence where the runs are of different models, for they hold a parameter of another shape."""
    own = run.names.number
    state = np.isin(tensors.kind, [own(kind) for kind in ("param", "param_grad", "optimizer")])
    wrong = np.flatnonzero(tensors.shapes_differ & state)
    if not len(wrong):
        return None
    left, right = int(tensors.left[wrong[0]]), int(tensors.right[wrong[0]])
    mine, other = (c.name("global_shape", row) or "a scalar" for c, row in ((run, left), (baseline, right)))
    named, folders = run.name("tensor", left), (run.capture.folder, baseline.capture.folder)
    return f"the runs are of different models: {named} is {mine} in {folders[0]} and {other} in {folders[1]}"
