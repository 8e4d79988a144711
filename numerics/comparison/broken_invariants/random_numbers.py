"""What recorded states of random-number generators say: ranks that ought to draw alike, or apart; steps that repeat."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from numerics.columns import Columns
from numerics.comparison.broken import Broken
from numerics.schema import RANDOM

_MODEL: Final = ("tp", "cp")
"""Axes on which ranks share sequences: dropout on a copied tensor must drop the same elements on all of them."""


def random_notes(run: Columns) -> tuple[str, ...]:
    """Return sentences about generators, by device: none where no state was recorded, or no forward draws a number."""
    found = []
    for device in ("cpu", "cuda"):
        rows = np.flatnonzero(run.named("tensor", f"{RANDOM}{device}") & run.named("kind", "input"))
        if len(rows) and _draws(run, rows):
            found += [*_pairs(run, rows, device), *_set_back(run, rows, device)]
    return tuple(found)


def with_draws(run: Columns, broken: Sequence[Broken]) -> list[Broken]:
    """Return broken invariants; the first says so where its ranks drew random numbers apart for their copies."""
    first = broken[0] if broken else None
    if first is None or first.name != "copies" or not run.named("kind", "activation")[first.row]:
        return list(broken)
    other = next(row for row in first.rows if run.digest[row] != run.digest[first.row])
    cause = _drawn_apart(run, first.row, other)
    return [replace(first, sentence=f"{first.sentence}: {cause}") if cause else first, *broken[1:]]


def _drawn_apart(run: Columns, row: int, other: int) -> str:
    """Return in words that the ranks of two unequal copies draw apart; "" if neither values nor states show it."""
    if run.capture.values and _dropped_apart(run, row, other):
        return "each drops other elements of its copy, for they draw random numbers apart"
    states = run.named("tensor", f"{RANDOM}cpu") & run.named("kind", "input")
    states &= (run["step"] == run["step"][row]) & (run["micro_batch"] == run["micro_batch"][row])
    held = [set(run.digest[states & (run["rank"] == run["rank"][r])].tolist()) for r in (row, other)]
    if not all(held) or held[0] == held[1] or not generator_moves(run):
        return ""
    return "their generators begin the forward in unlike states, so that what it draws (dropout, noise) is unlike"


def _dropped_apart(run: Columns, row: int, other: int) -> bool:
    """Return whether the recorded values of two copies show that each dropped other elements."""
    from numerics.local.draws.drawn_apart import dropped_apart
    from numerics.local.records.recorded import RecordedRun

    recorded = RecordedRun(run)
    one, two = recorded.local(row), recorded.local(other)
    return one is not None and two is not None and dropped_apart(one, two)


def drawn_alike(run: Columns) -> str:
    """Return in words that data-parallel ranks begin a forward with the same random numbers; "" where none do.

    Whether forwards draw any is not asked: a generator that never moves on says nothing.
    """
    if not generator_moves(run):
        return ""
    rows = np.flatnonzero(run.named("tensor", f"{RANDOM}cpu") & run.named("kind", "input"))
    for place in np.unique(np.stack([run[c][rows] for c in ("step", "micro_batch", "pp")], 1), axis=0):
        here = rows[(np.stack([run[c][rows] for c in ("step", "micro_batch", "pp")], 1) == place).all(1)]
        pair = _first(run, here, ("dp",), alike=False)
        if pair is not None:
            return (
                f"data-parallel ranks {pair[0]} and {pair[1]} begin forwards with the same random numbers (step "
                f"{place[0]}, micro-batch {place[1]}): whatever these draw (dropout, noise) is the same on both"
            )
    return ""


def generator_moves(run: Columns) -> bool:
    """Return whether a rank's generator moves on from one forward to another."""
    rows = np.flatnonzero(run.named("kind", "input") & run.named("tensor", f"{RANDOM}cpu"))
    ranks = run["rank"][rows]
    return any(len(np.unique(run.digest[rows][ranks == rank])) > 1 for rank in np.unique(ranks))


def _draws(run: Columns, rows: np.ndarray) -> bool:
    """Return whether a rank's generator moves on between two forwards of a step."""
    by = rows[np.lexsort((run["order"][rows], run["rank"][rows]))]
    same = (run["rank"][by][1:] == run["rank"][by][:-1]) & (run["step"][by][1:] == run["step"][by][:-1])
    return bool((run.digest[by][1:] != run.digest[by][:-1])[same].any())


def _set_back(run: Columns, rows: np.ndarray, device: str) -> list[str]:
    """Return the first generator that a step finds where an earlier step found it, before the same micro-batch."""
    held: dict[tuple[int, int, int], int] = {}
    for row in rows[np.lexsort((run["rank"][rows], run["step"][rows]))].tolist():
        step, rank, batch = (int(run[column][row]) for column in ("step", "rank", "micro_batch"))
        first = held.setdefault((rank, batch, int(run.digest[row])), step)
        if first != step:
            when = f"(micro-batch {batch}, {device})"
            again = f"rank {rank} draws in step {step} the random numbers of step {first} {when}"
            return [f"{again}: it went back to a checkpoint, or its generator is set back"]
    return []


def _pairs(run: Columns, rows: np.ndarray, device: str) -> list[str]:
    """Return the first pair of ranks of each kind with random numbers that do not fit each other."""
    places = np.stack([run[c][rows] for c in ("step", "micro_batch", "pp")], 1)
    sentences: dict[str, str] = {}
    for place in np.unique(places, axis=0):
        here = rows[(places == place).all(1)]
        step, batch, _ = (int(n) for n in place)
        when = f"(step {step}, micro-batch {batch}, {device})"
        for axes, alike in (((*_MODEL,), True), (("dp",), False)):
            pair = _first(run, here, axes, alike=alike)
            if pair is None:
                continue
            ranks = f"ranks {pair[0]} and {pair[1]}"
            sentences.setdefault(
                "alike" if alike else "apart",
                f"{ranks} share sequences and draw other random numbers {when}: dropout on copied tensors differs, as "
                "it ought to on parts of a tensor"
                if alike
                else f"data-parallel {ranks} draw the same random numbers {when}: they drop the same elements",
            )
    return list(sentences.values())


def _first(run: Columns, rows: np.ndarray, axes: tuple[str, ...], *, alike: bool) -> tuple[int, int] | None:
    """Return two ranks that differ in `axes` alone and are not `alike`, or are and ought not to be; None without."""
    held: dict[tuple[int, ...], list[int]] = {}
    others = [axis for axis in ("dp", *_MODEL) if axis not in axes]
    for row in rows.tolist():
        held.setdefault(tuple(int(run[axis][row]) for axis in others), []).append(row)
    for group in held.values():
        seen: dict[int, int] = {}
        for row in group:
            digest, rank = int(run.digest[row]), int(run["rank"][row])
            if alike and seen and digest not in seen:
                return next(iter(seen.values())), rank
            if not alike and seen.get(digest, rank) != rank:
                return seen[digest], rank
            seen.setdefault(digest, rank)
    return None
