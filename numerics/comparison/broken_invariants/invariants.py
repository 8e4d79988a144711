"""Invariants that hold within one correct run: a broken one proves a bug without any baseline or rerun.

- Copies are equal: ranks that hold the same part of the same tensor hold the same bits (replicated parameters and
  their gradients, activations between tensor-parallel ranks, norm and clip coefficient everywhere).
- Recomputation gives the values of the forward.
- The saved state is the state after the step.
- A message arrives as it was sent; an all-reduce leaves the same result on every rank of its group.
- Ranks that step their optimisers step them in the same steps.
- Parts and addends add up to the whole (`linear_invariants`).
"""

from dataclasses import replace

import numpy as np

from numerics.columns import Columns
from numerics.comparison.broken import Broken
from numerics.comparison.broken_invariants.linear_invariants import linear_invariants
from numerics.comparison.broken_invariants.owners import Mask, left_to_owners
from numerics.comparison.explanations.flipped_bits import flipped_bit
from numerics.keys import Ints, Keys, first_of_each, keys_of, occurrence
from numerics.local.records.skipped_updates import trained_steps
from numerics.schema import COLLECTIVES, PHASES
from numerics.thresholds.report import RANKS_IN_SENTENCE


def broken_invariants(run: Columns) -> list[Broken]:
    """Return all broken invariants of a run, by step and phase, the earliest first within each kind."""
    left = left_to_owners(run)
    broken = [
        *_copies(run, left),
        *_same_result(run),
        *_messages(run),
        *_updates(run),
        *_pairs(
            run, "recompute", ("forward", "backward"), "the recomputed {tensor} is not what the forward gave"
        ),
        *_pairs(run, "save_load", ("step", "save"), "the saved {tensor} is not what the step left"),
        *linear_invariants(run, left),
    ]
    found = sorted(
        broken, key=lambda one: (int(run["step"][one.row]), PHASES.index(run.name("phase", one.row)))
    )
    return [_with_bit(run, one) for one in found[:1]] + found[1:]


def _with_bit(run: Columns, one: Broken) -> Broken:
    """Return the broken invariant, with a note if one flipped bit is the difference between two of its rows."""
    other = next((row for row in one.rows if run.digest[row] != run.digest[one.row]), None)
    if other is None or run["boxes"][other] != run["boxes"][one.row]:
        return one
    bit = flipped_bit(run, one.row, int(run.digest[one.row]), int(run.digest[other]))
    return one if bit is None else replace(one, sentence=f"{one.sentence}: {bit.words}")


def _copies(run: Columns, left: Mask) -> list[Broken]:
    """Return where ranks hold the same part of one tensor with other bits, but for rows `left` to their owners."""
    chosen = np.flatnonzero(~run.named("kind", *COLLECTIVES, "metric") & ~left)
    columns = ("step", "phase", "kind", "tensor", "partial", "boxes", "global_shape", "dtype")
    # a scalar or whole tensor of a micro-batch belongs to its data-parallel rank
    own = np.where(run["micro_batch"] >= 0, run["micro_batch"] * (1 << 20) + run["dp"], -1)
    # what a stage of a pipeline gets and gives bears the same names on all stages
    stage = np.where(run.named("tensor", *_stage_names(run)), run["pp"], -1)
    base = keys_of(*(run[c] for c in columns), own, stage)[chosen]
    again = occurrence(keys_of(base, run["rank"][chosen]), run["order"][chosen])
    return [
        Broken("copies", _copies_text(run, rows), odd_one(run, rows), tuple(rows))
        for rows in contradictions(run, chosen, keys_of(base, again))
    ]


def _stage_names(run: Columns) -> list[str]:
    """Return the names of what `watch` records of the whole model that it was given: a stage's inputs and outputs."""
    return [name for name in run.names.texts if name in {"out", "out.grad"} or name.startswith("in.")]


def _copies_text(run: Columns, rows: list[int]) -> str:
    odd = odd_one(run, rows)
    others = [r for r in rows if run.digest[r] != run.digest[odd]]
    sides = f"{_ranks(run, [odd])} and {_ranks(run, others)}"
    if len(np.unique(run.digest[others])) > 1:
        sides = _ranks(run, rows)
    return (
        f"ranks {sides} hold the same part of {run.name('tensor', odd)} "
        f"({run.name('phase', odd)}, step {int(run['step'][odd])}) and it is not equal"
    )


def odd_one(run: Columns, rows: list[int]) -> int:
    """Return the first row outside the majority; of equal halves, the one of the later ranks."""
    digests, counts = np.unique(run.digest[rows], return_counts=True)
    reference = run.digest[rows[0]]
    if counts.max() > counts[digests == reference][0]:
        reference = digests[counts.argmax()]
    return next(row for row in rows if run.digest[row] != reference)


def _ranks(run: Columns, rows: list[int]) -> str:
    ranks = sorted({int(run["rank"][row]) for row in rows})
    return ", ".join(str(r) for r in ranks[:RANKS_IN_SENTENCE]) + (
        ", …" if len(ranks) > RANKS_IN_SENTENCE else ""
    )


def contradictions(run: Columns, chosen: Ints, keys: Keys) -> list[list[int]]:
    """Return the groups of rows with one key and several digests, in execution order of their first rows."""
    by = np.lexsort((run["rank"][chosen], keys))
    keys, rows = keys[by], chosen[by]
    if not len(rows):
        return []
    starts = np.flatnonzero(first_of_each(keys))
    low = np.minimum.reduceat(run.digest[rows], starts)
    high = np.maximum.reduceat(run.digest[rows], starts)
    ends = np.r_[starts[1:], len(rows)]
    groups = [[int(r) for r in rows[starts[g] : ends[g]]] for g in np.flatnonzero(low != high)]
    return sorted(
        groups, key=lambda g: (int(run["step"][g[0]]), int(run["order"][g[0]]), int(run["rank"][g[0]]))
    )


def _same_result(run: Columns) -> list[Broken]:
    """Return the all-reduces that left other results on some ranks of their group."""
    chosen = np.flatnonzero(run.named("kind", "collective_out") & run.named("op", "all_reduce"))
    columns = ("step", "phase", "axis", "label", "group", "micro_batch", "boxes", "global_shape")
    base = keys_of(*(run[c] for c in columns))[chosen]
    again = occurrence(keys_of(base, run["rank"][chosen]), run["order"][chosen])
    found = []
    for rows in contradictions(run, chosen, keys_of(base, again)):
        odd = odd_one(run, rows)
        text = (
            f"the all-reduce of {run.name('label', odd)} over {run.name('axis', odd)} (step {int(run['step'][odd])}) "
            f"left rank {int(run['rank'][odd])} with another result than the others"
        )
        found.append(Broken("all_reduce", text, odd, tuple(rows)))
    return found


def _messages(run: Columns) -> list[Broken]:
    """Return the pipeline's messages that did not arrive as they were sent."""
    pipeline = run.named("axis", "pp")
    sent = np.flatnonzero(pipeline & run.named("kind", "collective_in") & run.named("op", "send"))
    got = np.flatnonzero(pipeline & run.named("kind", "collective_out") & run.named("op", "recv"))
    rows = np.r_[sent, got]
    columns = ("step", "tensor", "boxes", "global_shape", "tp", "cp", "dp", "micro_batch")
    found = []
    for pair in contradictions(run, rows, keys_of(*(run[c] for c in columns))[rows]):
        if len(pair) != 2 or {run.name("op", row) for row in pair} != {"send", "recv"}:
            continue  # passed on under one name: pairs are unknown
        text = (
            f"{run.name('tensor', pair[0])} (step {int(run['step'][pair[0]])}) did not arrive as it was sent"
        )
        late = next(row for row in pair if run.name("op", row) == "recv")
        found.append(Broken("message", text, late, tuple(pair)))
    return found


def _updates(run: Columns) -> list[Broken]:
    """Return where some ranks stepped their optimisers, and others did not that trained and have one.

    The last step is left out: its record may end before the update.
    """
    stepped = run.named("phase", "step") & run.named("kind", "param", "optimizer", "scalar")
    own = set(run["rank"][stepped].tolist())
    found = []
    for step in trained_steps(run).tolist():
        here = run["step"] == step
        updated = np.unique(run["rank"][here & stepped])
        trained = here & run.named("phase", "backward") & np.isin(run["rank"], list(own))
        for rank in np.setdiff1d(run["rank"][trained], updated).tolist() if len(updated) else ():
            row = int(np.flatnonzero(trained & (run["rank"] == rank))[-1])
            they = f"rank {updated[0]} makes one"
            if len(updated) > 1:
                they = f"ranks {', '.join(map(str, updated[:RANKS_IN_SENTENCE]))} make one"
            text = f"rank {rank} makes no update in step {step}, in which {they}"
            found.append(Broken("updates", text, row, (row,)))
    return found


def _pairs(run: Columns, name: str, phases: tuple[str, str], sentence: str) -> list[Broken]:
    """Return where one rank recorded the same part in two phases with other bits."""
    kinds = ("activation",) if name == "recompute" else ("param", "optimizer")
    first, second = (np.flatnonzero(run.named("phase", p) & run.named("kind", *kinds)) for p in phases)
    if not len(first) or not len(second):
        return []
    rows = np.r_[first, second]
    columns = ("kind", "tensor", "boxes", "global_shape", "rank", "dtype")
    base = keys_of(run["step"][rows], *(run[c][rows] for c in columns), run["micro_batch"][rows])
    again = occurrence(keys_of(base, run["phase"][rows]), run["order"][rows])
    found = []
    for pair in contradictions(run, rows, keys_of(base, again)):
        later = next((r for r in pair if run.name("phase", r) == phases[1]), None)
        if later is None or len(pair) < 2:
            continue
        text = sentence.format(tensor=run.name("tensor", later)) + (
            f" (step {int(run['step'][later])}, rank {int(run['rank'][later])})"
        )
        found.append(Broken(name, text, later, tuple(pair)))
    return found
