"""What a place's model was called with: tensors put together from the parts of ranks, and what else it was given."""

import json
from typing import Any

from numerics.local.recorded_step import Place, RecordedStep
from numerics.schema import ARGUMENTS
from numerics.thresholds.local import MAX_ARGUMENTS
from tracekit.errors import InputError


def spread_input(state: RecordedStep, place: Place) -> str:
    """Return the first input of which the ranks of a place hold unequal values, none with its place; else ""."""
    recorded, run = state.recorded, state.recorded.run
    for name in recorded.names(state.step, "forward", "input"):
        rows = recorded.of_place(recorded.rows(state.step, "forward", "input", name), place)
        first = min((int(run["pp"][row]) for row in rows), default=0)
        rows = [row for row in rows if int(run["pp"][row]) == first and recorded.unplaced(row)]
        unequal = name.startswith("in.") and len({int(run.digest[row]) for row in rows}) > 1
        if unequal and recorded.joined(state.step, place, rows) is None:
            return name
    return ""


def model_inputs(state: RecordedStep, place: Place) -> tuple[list[Any], dict[str, Any]]:
    """Return what the model was called with, by position and by name. InputError where that was not recorded.

    What is no tensor at a position before a recorded one counts as None where no record tells.
    """
    recorded, pipeline = state.recorded, state.recorded.run["pp"]
    tensors: dict[str, Any] = {}
    for name in recorded.names(state.step, "forward", "input"):
        rows = recorded.rows(state.step, "forward", "input", name)
        first = min(int(pipeline[row]) for row in rows)
        rows = [row for row in recorded.of_place(rows, place) if int(pipeline[row]) == first]
        if not name.startswith("in.") or not rows:
            continue
        value = recorded.joined(state.step, place, rows)
        if value is None:
            found = recorded.whole(rows, None, batch=True) or recorded.whole(rows[:1], None, batch=True)
            value = found[0].tensor if found else None
        if value is not None:
            tensors[name.removeprefix("in.")] = recorded.as_given(rows[0], value)
    if not tensors:
        raise InputError(
            f"{recorded.run.capture.folder}: step {state.step} holds no values of the model's inputs; capture with "
            "level tensors"
        )
    given = {**_other_arguments(state, place), **tensors}
    places = {name: int(name) for name in given if name.isdecimal() and int(name) < MAX_ARGUMENTS}
    args = [given.get(str(n)) for n in range(max(places.values(), default=-1) + 1)]
    return args, {name: value for name, value in given.items() if name not in places}


def _other_arguments(state: RecordedStep, place: Place) -> dict[str, Any]:
    """Return what the model was called with beside tensors, by position or name; empty where no record tells."""
    recorded = state.recorded
    rows = recorded.of_place(recorded.rows(state.step, "forward", "input", ARGUMENTS), place)
    pipeline = recorded.run["pp"]
    first = min(rows, key=lambda row: int(pipeline[row]), default=None)
    held = None if first is None else recorded.local(first)
    if held is None:
        return {}
    try:
        told = json.loads(held.numpy().tobytes())
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}
