"""What a place's model was called with: tensors put together from the parts of ranks, and what else it was given."""

from typing import Any

from numerics.local.recorded_step import Place, RecordedStep
from tracekit.errors import InputError


def spread_input(state: RecordedStep, place: Place) -> str:
    """Return the first input with unequal values on the ranks of a place, none with its place; else ""."""
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
    """Return what the model was called with, by position and by name. InputError where that was not recorded."""
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
    return state.arranged(place, tensors)
