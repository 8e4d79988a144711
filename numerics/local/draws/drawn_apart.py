"""Random numbers that ranks draw apart though they share the activations: copies of one tensor then differ."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import torch

from numerics.local.forced_pass import Check
from numerics.local.judgement import Standing
from numerics.local.recorded_step import Place, RecordedStep
from numerics.local.records.recorded import ADDENDS
from numerics.schema import RANDOM


def named_apart(
    state: RecordedStep, place: Place, checks: Sequence[Check], random: frozenset[str]
) -> list[Check]:
    """Return the checks of a place; a wrong output for which its ranks drew apart gets that as its relation.

    `random` names the outputs that random numbers change directly. Where a tensor is not one of these, its ranks hold
    unequal values for another reason, and its check stays as it is.
    """
    return [_named(state, place, one) if one.tensor in random else one for one in checks]


def _named(state: RecordedStep, place: Place, check: Check) -> Check:
    judged = check.judged
    if check.phase != "forward" or judged.standing <= Standing.WITHIN or judged.how != ADDENDS:
        return check
    words = _drawn_apart(state, place, check.tensor)
    return (
        replace(check, judged=replace(judged, standing=Standing.BEYOND, relation=words, apart=True))
        if words
        else check
    )


def _drawn_apart(state: RecordedStep, place: Place, tensor: str) -> str:
    """Return in words that two ranks drew apart for their copies of an output; "" if nothing shows it."""
    recorded = state.recorded
    rows = recorded.of_place(recorded.rows(state.step, "forward", "activation", tensor), place)
    states = {
        int(recorded.run["rank"][row]): int(recorded.run.digest[row])
        for row in recorded.of_place(recorded.rows(state.step, "forward", "input", f"{RANDOM}cpu"), place)
    }
    for a, b in combinations(rows, 2):
        ranks = [int(recorded.run["rank"][row]) for row in (a, b)]
        pair = f"ranks {ranks[0]} and {ranks[1]} share these activations and draw random numbers apart"
        one, other = recorded.local(a), recorded.local(b)
        if one is not None and other is not None and dropped_apart(one, other):
            return f"{pair} (each drops other elements of its copy)"
        first, second = (states.get(rank) for rank in ranks)
        if None not in (first, second) and first != second:
            return f"{pair} (their generators begin the forward in unlike states)"
    return ""


def dropped_apart(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two copies are equal in every bit but where one of them is zero, and differ there."""
    if one.shape != other.shape:
        return False
    both = (one != 0) & (other != 0)
    return bool(both.any()) and torch.equal(one[both], other[both]) and not torch.equal(one, other)
