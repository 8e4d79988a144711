"""Why two captures hold no tensor that can be compared by itself, and what would decide: a model, or places."""

from dataclasses import replace

import numpy as np

from numerics.columns import Columns
from numerics.comparison.summary import incomparable
from numerics.findings import CompareFinding
from numerics.schema import UNPLACED
from numerics.thresholds.report import LISTED_NAMES


def nothing_in_common(run: Columns, baseline: Columns) -> CompareFinding:
    """Return the finding on two captures without a tensor in common.

    Tensors of one name that ranks hold as unplaced parts leave the verdict open; other names are another model.
    """
    mine, other = _names(run), _names(baseline)
    both = sorted(mine.keys() & other.keys())
    folders = run.capture.folder, baseline.capture.folder
    if not both:
        sides = [
            f"{folder} has {_listed(names)}" for folder, names in zip(folders, (mine, other), strict=True)
        ]
        return incomparable(
            run,
            baseline,
            f"{folders[0]} and {folders[1]} have no tensor in common, because they share no name: {'; '.join(sides)}. "
            "They are of different models, or the modules of a part (a stage) do not have the names of the whole model",
        )
    unplaced = next((side for side in (run, baseline) if _unplaced(side)), None)
    if unplaced is None:
        return incomparable(
            run,
            baseline,
            f"{folders[0]} and {folders[1]} have no tensor in common: no step or part is in both captures",
        )
    return _unplaced_parts(run, baseline, unplaced, (mine, other))


def _unplaced_parts(
    run: Columns, baseline: Columns, unplaced: Columns, rows: tuple[dict[str, int], dict[str, int]]
) -> CompareFinding:
    """Return the finding on captures with the same names, if `unplaced` does not say which parts it holds."""
    mine, other = rows
    both = sorted(mine.keys() & other.keys())
    folders = run.capture.folder, baseline.capture.folder
    state = [name for name in both if run.name("kind", mine[name]) == "param"] or both
    apart = [name for name in state if run.name("boxes", mine[name]) != baseline.name("boxes", other[name])]
    name = (apart or state)[0]
    shapes = [
        f"{side.name('global_shape', row) or 'a scalar'} on rank {int(side['rank'][row])} of {side.capture.folder}"
        for side, row in ((run, mine[name]), (baseline, other[name]))
    ]
    return replace(
        incomparable(
            run,
            baseline,
            f"{len(both)} tensors have the same names in both captures, but in {unplaced.capture.folder} several ranks "
            "share a data-parallel index and hold plain tensors, which do not show whether they are copies, parts "
            f"of the whole or stages of a pipeline ({name} is {shapes[0]}, "
            f"{shapes[1]}): the captures alone cannot be compared; `--model` or `watch(place=...)` shows what each "
            "rank holds",
        ),
        verdict="undecided",
        next=f"numerics compare --model FILE.py:FUNCTION --parallel {folders[0]} --baseline {folders[1]} (the "
        "whole model on one process shows how the parts make it up), or capture again with `watch(place=...)`",
    )


def _names(run: Columns) -> dict[str, int]:
    """Return the parameters and activations of a capture, each with its first row."""
    rows = np.flatnonzero(run.named("kind", "param", "activation"))
    names, first = np.unique(run["tensor"][rows], return_index=True)
    return {run.names.text(int(n)): int(rows[at]) for n, at in zip(names, first, strict=True)}


def _unplaced(run: Columns) -> bool:
    """Return whether ranks hold parameters or activations that do not say what part they are."""
    held = np.unique(run["partial"][run.named("kind", "param", "activation")])
    return any(run.names.text(int(n)).startswith(UNPLACED) for n in held if n >= 0)


def _listed(names: dict[str, int]) -> str:
    shown = sorted(names)[:LISTED_NAMES]
    more = len(names) - len(shown)
    return (", ".join(shown) or "no parameter or activation") + (f" and {more} more" if more > 0 else "")
