"""A run that goes on from its baseline's checkpoint: its steps counted as the baseline counts them, and what it lost.

A restarted trainer counts from 0, or goes on counting. If its initial weights equal, in every bit, the baseline's
weights after a step, its first step is the baseline's next one. State of the optimiser and order of the data must then
be the baseline's as well.
"""

from dataclasses import dataclass, replace

import numpy as np

from numerics.columns import Columns
from numerics.comparison.broken import Broken
from numerics.schema import BUFFER, RANDOM, WATCHED
from numerics.thresholds.report import NAMES_IN_SENTENCE
from tracekit.arrays import from_numpy

_Held = dict[tuple[int, ...], int]
"""Digests by the key that separates rows."""


@dataclass(frozen=True)
class Resumed:
    """A run that goes on after step `after` of its baseline.

    `counts_on` says that its own count of steps goes on as well, `same` that it starts from that step's weights in
    every bit.
    """

    after: int
    counts_on: bool
    same: bool


def resumed(run: Columns, baseline: Columns) -> Resumed | None:
    """Return how a run goes on from a step of its baseline; None if it starts as the baseline did.

    It goes on after the step that left the weights it starts from, the last one if several did. If none did, it goes
    on where its record begins, if it counts its steps on and the baseline recorded the weights of the step before, or
    else where the baseline first read what it reads first.
    """
    start = _held(run, "init", "param", -1, "tensor", "boxes")
    if not start or start == _held(baseline, "init", "param", -1, "tensor", "boxes"):
        return None
    steps = np.unique(baseline["step"][baseline.named("phase", "step") & baseline.named("kind", "param")])
    after = [s for s in steps.tolist() if _held(baseline, "step", "param", s, "tensor", "boxes") == start]
    first = min(run["step"][run["step"] >= 0].tolist(), default=0)
    own = run.capture.source != WATCHED and first > 0  # `watch` counts from 0
    if after:
        return Resumed(max(after), own and first > max(after), True)
    begins = (run["step"] == first) & run.named("phase", "forward")
    if own:
        return Resumed(first - 1, True, False) if begins.any() and first - 1 in steps else None
    again = _read_in(run, baseline, first)
    return Resumed(again - 1, False, False) if again is not None and again - 1 in steps else None


def _read_in(run: Columns, baseline: Columns, first: int) -> int | None:
    """Return the later step of the baseline that reads all that a run reads first; None where it is the first one.

    Fingerprints of parts add up to that of the whole batch, however ranks and micro-batches share it.
    """
    mine = _read(run, first)
    steps = np.unique(baseline["step"][baseline["step"] >= 0]).tolist()
    if not mine or not steps or mine == _read(baseline, steps[0]):
        return None  # without a step nothing was recorded but what the baseline starts from
    return next((step for step in steps[1:] if _read(baseline, step) == mine), None)


def _read(run: Columns, step: int) -> dict[int, int]:
    """Return the fingerprints of a step's whole inputs by the number of their name."""
    found: dict[int, int] = {}
    for (tensor, _), digest in _inputs(run, step, "tensor", "boxes").items():
        found[tensor] = (found.get(tensor, 0) + digest) % 2**64
    return found


def counted_from(run: Columns, resumed: Resumed) -> Columns:
    """Return the columns of a run, or of its replay, with its steps counted as the baseline counts them.

    What it starts from is the state after `resumed.after`; the weights begin the step after it, if it is recorded so.
    """
    step, phase, start = run["step"].copy(), run["phase"].copy(), run["step"] < 0
    ended = start if resumed.counts_on else start & run.named("kind", "optimizer")
    step = step if resumed.counts_on else np.where(start, resumed.after + 1, step + resumed.after + 1)
    phase[ended] = run.names.number("step")
    step[ended] = resumed.after
    return replace(run, ints={**run.ints, "step": step, "phase": phase})


def going_on(run: Columns, baseline: Columns | None, since: Resumed | None) -> tuple[list[Broken], str, str]:
    """Return in words what a run lost that goes on from its baseline, how it goes on, and from which other weights."""
    if baseline is None or since is None:
        return [], "", ""
    if not since.same:
        return _left_out(run, baseline, since.after), "", _begins_apart(run, baseline, since)
    return lost_state(run, baseline, since.after), _generators_note(run, baseline, since.after), ""


def _left_out(run: Columns, baseline: Columns, after: int) -> list[Broken]:
    """Return that a run begins without any state of its optimiser, where its baseline has some after that step."""
    mine = _held(run, "step", "optimizer", after, "tensor")
    return [] if mine else _optimizer(run, baseline, after)


def _begins_apart(run: Columns, baseline: Columns, resumed: Resumed) -> str:
    """Return in words from which other weights than its baseline's a run goes on."""
    start = ("step", "param", resumed.after) if resumed.counts_on else ("init", "param", resumed.after + 1)
    mine = _held(run, *start, "tensor", "boxes")
    due = _held(baseline, "step", "param", resumed.after, "tensor", "boxes")
    both = mine.keys() & due.keys()
    unlike = sorted({run.names.text(key[0]) for key in both if mine[key] != due[key]})
    named = (
        f"{len(unlike)} of them differ, {unlike[0]} among them" if unlike else "it holds other parts of them"
    )
    return (
        f"it goes on in step {resumed.after + 1} from weights that are not the baseline's after step {resumed.after} "
        f"({named}), and the steps before are not in its record"
    )


def lost_state(run: Columns, baseline: Columns, after: int) -> list[Broken]:
    """Return what a run that goes on after a step did not take over: its state, buffers, order of data."""
    return [*_optimizer(run, baseline, after), *_buffers(run, baseline, after), *_data(run, baseline, after)]


def _generators_note(run: Columns, baseline: Columns, after: int) -> str:
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
    sketch = run.capture.table.select(["min", "max"]).take(from_numpy(rows))
    return any(
        low != high for low, high in zip(*(column.to_pylist() for column in sketch.columns), strict=True)
    )


def _optimizer(run: Columns, baseline: Columns, after: int) -> list[Broken]:
    mine = _held(run, "step", "optimizer", after, "tensor", "boxes")
    due = _held(baseline, "step", "optimizer", after, "tensor", "boxes")
    if not mine and run.capture.source != WATCHED:
        return []  # such a recorder may leave the state out
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
    text = f"the run goes on after step {after} of its baseline, and the optimiser's state was not restored"
    return [Broken("resumed", f"{text}: {how}", int(rows[0]), (int(rows[0]),))]


def _buffers(run: Columns, baseline: Columns, after: int) -> list[Broken]:
    """Return the buffers of a run that no rank of the baseline held then: a checkpoint has those of one rank."""
    mine = _held_buffers(run, "forward", after + 1)
    due = [_held_buffers(baseline, *then) for then in (("step", after), ("forward", after + 1))]
    held = {name: {digest for d in due for digest in d.get(name, {}).values()} for name in mine}
    wrong = sorted(name for name, rows in mine.items() if held[name] and not set(rows.values()) <= held[name])
    if not wrong:
        return []
    row = min(row for name in wrong for row in mine[name])
    names = ", ".join(name.removeprefix(BUFFER) for name in wrong[:NAMES_IN_SENTENCE])
    text = (
        f"the run goes on from the baseline's weights after step {after}, and its buffers were not restored: "
        f"{len(wrong)} of them {'are' if len(wrong) > 1 else 'is'} not the baseline's ({names}"
        f"{', …' if len(wrong) > NAMES_IN_SENTENCE else ''})"
    )
    return [Broken("resumed", text, row, (row,))]


def _held_buffers(run: Columns, phase: str, step: int) -> dict[str, dict[int, int]]:
    """Return the digests of buffers before a step's first forward, or after the step, by name and row."""
    names = [name for name in run.names.texts if name.startswith(BUFFER)]
    chosen = run.named("phase", phase) & run.named("kind", "input") & run.named("tensor", *names)
    found: dict[str, dict[int, int]] = {}
    for row in np.flatnonzero(chosen & (run["step"] == step) & (run["micro_batch"] <= 0)).tolist():
        found.setdefault(run.name("tensor", row), {})[row] = int(run.digest[row])
    return found


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
    names = [name for name in run.names.texts if name.startswith(("in.", "data."))]
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
