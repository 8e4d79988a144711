"""Whether a run was trained on other sequences than its baseline: integers and an order of documents never round."""

from collections import Counter

import numpy as np
import torch

from numerics.columns import Columns
from numerics.local.recorded import RecordedRun
from numerics.thresholds.comparison import MAX_ELEMENTS


def other_inputs(run: Columns, baseline: Columns | None) -> str | None:
    """Return a sentence where a step's integer inputs are not the baseline's; None otherwise, or where nobody can tell.

    Sequences are compared as a set: which rank and micro-batch reads which changes no sum but its order.
    """
    if baseline is None or not run.capture.values or not baseline.capture.values:
        return None
    mine, other = RecordedRun(run), RecordedRun(baseline)
    for step in sorted(set(mine.steps) & set(other.steps)):
        for name in [name for name in mine.names(step, "forward", "input") if name.startswith("in.")]:
            here, there = _sequences(mine, step, name), _sequences(other, step, name)
            if here is None or there is None or here == there:
                continue
            if sum(here.values()) != sum(there.values()):
                continue  # recorded in other parts
            count = sum((here - there).values())
            return (
                f"{count} of {sum(here.values())} sequences of {name} in step {step} are not the baseline's: the runs "
                "were trained on other data, or on another order of documents"
            )
    return None


def _sequences(recorded: RecordedRun, step: int, name: str) -> Counter[bytes] | None:
    """Return the sequences of an integer input, each copy of a data-parallel rank once; None where some are unknown."""
    run = recorded.run
    rows = recorded.rows(step, "forward", "input", name)
    stages = run["pp"][rows] if rows else np.zeros(0, np.int64)
    found: Counter[bytes] = Counter()
    seen: set[tuple[int, int]] = set()
    total = 0
    for row in [row for row, stage in zip(rows, stages, strict=True) if stage == stages.min()]:
        place = (int(run["dp"][row]), int(run["micro_batch"][row]))
        if place in seen:
            continue
        seen.add(place)
        whole = recorded.whole([row], None, batch=True)
        total += int(run["numel"][row])
        if not whole or whole[0].tensor.is_floating_point() or total > MAX_ELEMENTS:
            return None
        tensor = whole[0].tensor.to(torch.int64)
        found.update(part.numpy().tobytes() for part in (tensor if tensor.dim() else tensor[None]))
    return found or None
