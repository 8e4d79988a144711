"""A run that goes on from its baseline's checkpoint: its steps counted as the baseline counts them, and what it lost.

A restarted trainer counts from 0. If its initial weights equal, in every bit, the baseline's weights after a step, its
first step is the baseline's next one. State of the optimiser and order of the data must then be the baseline's as well.
"""

from dataclasses import replace

import numpy as np

from numerics.columns import Columns
from numerics.comparison.broken import Broken
from numerics.schema import RANDOM
from numerics.thresholds.report import NAMES_IN_SENTENCE

_Held = dict[tuple[int, ...], int]
"""Digests by the key that separates rows."""


def resumed_after(run: Columns, baseline: Columns) -> int | None:
    """Return the baseline's step that left the weights a run starts from, in every bit; None without such a step.

    None also if it starts as the baseline did. If several steps left the same weights, the last counts.
    """
    start = _held(run, "init", "param", -1, "tensor", "boxes")
    if not start or start == _held(baseline, "init", "param", -1, "tensor", "boxes"):
        return None
    steps = np.unique(baseline["step"][baseline.named("phase", "step") & baseline.named("kind", "param")])
    after = [s for s in steps.tolist() if _held(baseline, "step", "param", s, "tensor", "boxes") == start]
    return max(after, default=None)


def counted_from(run: Columns, after: int) -> Columns:
    """Return a run's columns with its steps counted from that after `after`, and its start as that step left it."""
    step, phase, start = run["step"].copy(), run["phase"].copy(), run["step"] < 0
    moments = start & run.named("kind", "optimizer")
    step = np.where(start, after + 1, step + after + 1)
    phase[moments] = run.names.number("step")
    step[moments] = after
    return replace(run, ints={**run.ints, "step": step, "phase": phase})


def lost_state(run: Columns, baseline: Columns, after: int) -> list[Broken]:
    """Return what a run that goes on after a step did not take over: the optimiser's state, the order of its data."""
    return [*_optimizer(run, baseline, after), *_data(run, baseline, after)]


def generators_note(run: Columns, baseline: Columns, after: int) -> str:
    """Return how a run goes on from a step, and whether its generators do, in words."""
    said = f"the run goes on from the baseline's weights after step {after}, and its steps count from {after + 1}"
    columns = ("rank", "tensor", "micro_batch")
    mine, other = (_random(side, after + 1, *columns) for side in (run, baseline))
    common = mine.keys() & other.keys()
    unlike = [key for key in common if mine[key] != other[key]]
    if not unlike:
        return said
    return f"{said}; its generators of random numbers were not restored (step {after + 1}, rank {min(unlike)[0]})"


def generators_apart(run: Columns, baseline: Columns, goes_on: str) -> str:
    """Return in words that a run goes on from a checkpoint with other generators than its baseline; "" otherwise.

    `goes_on` says that its steps go on from one of the baseline's. Else both were recorded from where they went on:
    they begin with the same weights and the same moments, which some steps have filled.
    """
    steps = run["step"][(run["step"] >= 0) & run.named("kind", "input")]
    if not len(steps) or not (goes_on or _both_go_on(run, baseline)):
        return ""
    columns = ("rank", "tensor", "micro_batch")
    mine, other = (_random(side, int(steps.min()), *columns) for side in (run, baseline))
    unlike = [key for key in mine.keys() & other.keys() if mine[key] != other[key]]
    if not unlike:
        return ""
    begin = "it goes on" if goes_on else "both go on from the same weights and moments"
    return f"{begin} with unlike generators (step {int(steps.min())}, rank {min(unlike)[0]}): one was not restored"


def _both_go_on(run: Columns, baseline: Columns) -> bool:
    """Return whether two runs begin with the same weights and moments, which differ within a tensor: no fresh start."""
    for kind in ("param", "optimizer"):
        held = [_held(side, "init", kind, -1, "tensor", "boxes") for side in (run, baseline)]
        if not held[0] or held[0] != held[1]:
            return False
    rows = np.flatnonzero(run.named("phase", "init") & run.named("kind", "optimizer") & (run["numel"] > 1))
    sketch = run.capture.table.select(["min", "max"]).take(rows)
    return any(
        low != high for low, high in zip(*(column.to_pylist() for column in sketch.columns), strict=True)
    )


def _optimizer(run: Columns, baseline: Columns, after: int) -> list[Broken]:
    mine = _held(run, "step", "optimizer", after, "tensor", "boxes")
    due = _held(baseline, "step", "optimizer", after, "tensor", "boxes")
    wrong = sorted({run.names.text(key[0]) for key, digest in due.items() if mine.get(key) != digest})
    rows = np.flatnonzero((run["step"] == after + 1) & run.named("kind", "param"))
    if not wrong or not len(rows):
        return []
    names = ", ".join(wrong[:NAMES_IN_SENTENCE]) + (", …" if len(wrong) > NAMES_IN_SENTENCE else "")
    how = (
        f"{len(wrong)} of its tensors are not the baseline's ({names})"
        if mine
        else f"it begins without {names}"
    )
    text = f"the run goes on from the baseline's weights after step {after}, and the optimiser's state was not restored"
    return [Broken("resumed", f"{text}: {how}", int(rows[0]), (int(rows[0]),))]


def _data(run: Columns, baseline: Columns, after: int) -> list[Broken]:
    columns = ("tensor", "dp", "micro_batch", "boxes", "numel")
    mine = _inputs(run, after + 1, *columns)
    steps = np.unique(baseline["step"]).tolist()
    if not mine or mine == _inputs(baseline, after + 1, *columns):
        return []
    again = next((step for step in steps if step >= 0 and _inputs(baseline, step, *columns) == mine), None)
    if again is None:
        return []
    row = int(np.flatnonzero((run["step"] == after + 1) & run.named("kind", "input"))[0])
    text = (
        f"the run goes on from the baseline's weights after step {after}, and the order of its data was not restored: "
        f"step {after + 1} reads what the baseline's step {again} read"
    )
    return [Broken("resumed", text, row, (row,))]


def _held(run: Columns, phase: str, kind: str, step: int, *columns: str) -> _Held:
    return _digests(
        run, run.named("phase", phase) & run.named("kind", kind) & (run["step"] == step), *columns
    )


def _inputs(run: Columns, step: int, *columns: str) -> _Held:
    names = [name for name in run.names.texts if name.startswith("in.")]
    return _digests(
        run, run.named("kind", "input") & run.named("tensor", *names) & (run["step"] == step), *columns
    )


def _random(run: Columns, step: int, *columns: str) -> _Held:
    names = [name for name in run.names.texts if name.startswith(RANDOM)]
    return _digests(
        run, run.named("kind", "input") & run.named("tensor", *names) & (run["step"] == step), *columns
    )


def _digests(run: Columns, chosen: np.ndarray, *columns: str) -> _Held:
    return {
        tuple(int(run[column][row]) for column in columns): int(run.digest[row])
        for row in np.flatnonzero(chosen).tolist()
    }
