"""Which sequences a run trains on: the same ones on several ranks or micro-batches, or those of an earlier step."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

import torch

from numerics.local.local_check import Doubt
from numerics.local.records.padded_sequences import counterparts
from numerics.local.records.recorded import RecordedRun
from numerics.thresholds.comparison import MAX_ELEMENTS
from numerics.thresholds.report import RANKS_IN_SENTENCE, STEPS_IN_SENTENCE

_Read = dict[tuple[int, int], tuple[bytes, ...]]
"""The sequences of an input, as bytes, by data-parallel index and micro-batch."""

_SETTLED: Final = (
    "give each data-parallel rank and micro-batch sequences of its own (DistributedSampler, a generator that is seeded "
    "with the rank, one iterator for all micro-batches), or compare with a baseline that was given the same ones"
)


def same_sequences(recorded: RecordedRun) -> str:
    """Return in words which data-parallel ranks, or micro-batches of each, get the same sequences in every step; or "".

    Inputs with equal sequences in a step, such as positions, are ignored.
    """
    for side, kind in enumerate(("data-parallel ranks", "micro-batches")):
        numbers, name = set[int](), ""
        for place, step in enumerate(recorded.steps):
            alike = {one: _alike(read, side) for one, read in _varying(recorded, step).items()}
            if not alike or not all(alike.values()):
                numbers = set()
                break
            found = set.intersection(*alike.values())
            numbers = found if place == 0 else numbers & found
            name = name or min(alike)
        if len(numbers) > 1 and (side == 0 or _same_outputs(recorded, numbers)):
            listed = _listed(sorted(numbers), RANKS_IN_SENTENCE)
            return f"{kind} {listed} read the same sequences of {name} in every step"
    return ""


def _same_outputs(recorded: RecordedRun, batches: set[int]) -> bool:
    """Return whether the micro-batches give equal outputs in the first step: with other random numbers they differ."""
    run = recorded.run
    held: dict[int, set[int]] = {}
    for row in recorded.rows(recorded.steps[0], "forward", "activation", "out"):
        if int(run["micro_batch"][row]) in batches:
            held.setdefault(int(run["rank"][row]), set()).add(int(run.digest[row]))
    return bool(held) and all(len(digests) == 1 for digests in held.values())


def same_sequences_doubts(recorded: RecordedRun) -> list[Doubt]:
    """Return a doubt where data-parallel ranks are given the same sequences: their batch is one rank's."""
    found = same_sequences(recorded)
    whose = "micro-batch" if found.startswith("micro") else "rank"
    return [Doubt(f"{found}, so that the batch is one {whose}'s", _SETTLED)] if found else []


def repeated_sequences(recorded: RecordedRun) -> str:
    """Return in words which steps read the sequences of an earlier one again, in the same order; "" where none does."""
    seen: dict[tuple[object, ...], int] = {}
    again: list[tuple[int, int]] = []
    for step in recorded.steps:
        varying = _varying(recorded, step)
        if not varying:
            return ""
        key = tuple((name, *pair) for name, read in sorted(varying.items()) for pair in sorted(read.items()))
        if key in seen:
            again.append((step, seen[key]))
        seen.setdefault(key, step)
    if not again:
        return ""
    later, earlier = ([pair[side] for pair in again] for side in (0, 1))
    first = _listed(sorted(set(earlier)), STEPS_IN_SENTENCE)
    if len(later) == 1:
        return f"step {later[0]} repeats the sequences of step {first}"
    return f"steps {_listed(later, STEPS_IN_SENTENCE)} repeat the sequences of step {first}"


def other_sequences(mine: RecordedRun, other: RecordedRun) -> str:
    """Return in words that two runs have no sequence in common; "" where they have some, or none is known.

    Runs of one sampler that differ by a bug share sequences, as a rule: in other steps, on other ranks, or in part.
    """
    shared, read = set[str](), dict[str, int]()
    theirs = [_varying(other, step) for step in other.steps]
    for step in mine.steps:
        for name, places in _varying(mine, step).items():
            own = Counter(row for rows in places.values() for row in rows)
            known = {row for one in theirs for rows in one.get(name, {}).values() for row in rows}
            if not known:
                continue
            read[name] = read.get(name, 0) + sum(own.values())
            if max(counterparts([(one,) for one in own], [(one,) for one in known])) >= 0:
                shared.add(name)
    if not read or shared:
        return ""
    name = min(read)
    return (
        f"the runs trained on other sequences: none of the {read[name]} of {name} in {len(mine.steps)} step"
        f"{'s' * (len(mine.steps) > 1)} is among the baseline's (another seed, order or set of data)"
    )


def _varying(recorded: RecordedRun, step: int) -> dict[str, _Read]:
    """Return the integer inputs of a step with sequences that differ; nothing if one is not known whole."""
    found: dict[str, _Read] = {}
    for name in [one for one in recorded.names(step, "forward", "input") if one.startswith("in.")]:
        read: _Read = {}
        for place in recorded.places(step):
            whole = recorded.input(step, name, place)
            if whole is None or not whole.dim() or whole.is_floating_point() or whole.numel() > MAX_ELEMENTS:
                break
            read[place] = _rows(whole)
        else:
            if len({row for rows in read.values() for row in rows}) > 1:
                found[name] = read
    return found


def _rows(value: torch.Tensor) -> tuple[bytes, ...]:
    """Return the sequences of an input; one without a batch is one sequence."""
    rows = value.to(torch.int64).reshape(len(value) if value.dim() > 1 else 1, -1)
    return tuple(row.numpy().tobytes() for row in rows)


def _alike(read: _Read, side: int) -> set[int]:
    """Return the data-parallel indices (side 0) or micro-batches (1) that hold what another one does, in all places."""
    by_index: dict[int, list[tuple[bytes, ...]]] = {}
    for place, rows in sorted(read.items()):
        by_index.setdefault(place[side], []).append(rows)
    count = Counter(tuple(parts) for parts in by_index.values())
    most = max(count.values(), default=0)
    return {index for index, parts in by_index.items() if most > 1 and count[tuple(parts)] == most}


def _listed(numbers: Sequence[int], most: int) -> str:
    """Return numbers as words, the first of them where there are many."""
    shown = [str(number) for number in numbers[:most]]
    if len(numbers) > most:
        return ", ".join(shown) + ", …"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else shown[0]
