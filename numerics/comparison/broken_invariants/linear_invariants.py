"""Invariants that need no values: fingerprints and sketches of parts and addends add up to those of the whole.

- The result of an all-gather is what its ranks put in: fingerprints add, in every bit.
- A broadcast leaves one rank's tensor everywhere.
- Sums of an all-reduce or reduce-scatter, and of gradients over micro-batches and ranks, are those of their addends up
  to the rounding of any order. Their sketches say so for FP32; 16-bit sums of large tensors round too much for this.
- A parameter at the start of a step is what the step before left, or what the trainer made of that on all ranks, or
  where it went back, what it began with.
- A pipeline stage gets what the stage before gave, if that holds for most messages of the run.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from numerics.columns import Columns
from numerics.comparison.broken import Broken
from numerics.comparison.broken_invariants.owners import Mask
from numerics.formats import least_roundoff
from numerics.local.records.changed_weights import changed_weights, intended, sentence_of
from numerics.schema import COLLECTIVES
from numerics.thresholds.comparison import LEAST_FITTED, LEAST_TOLERANCE
from numerics.thresholds.local import (
    FUNCTION_ROUNDINGS,
    LEAST_GRADIENTS,
    MOSTLY,
    MOSTLY_NEAR,
    SUM_ROUNDINGS,
    WHOLE_INVERSE,
)

_MASK: Final = (1 << 64) - 1
_Key = tuple[int, int, int, int]


def linear_invariants(run: Columns, owned: Mask) -> list[Broken]:
    """Return the broken ones among the invariants of this module, the earliest first within each kind.

    `owned` are the rows of parameters that their owner steps (see `owners`).
    """
    return [*_collectives(run), *_gradients(run), *_between_steps(run, owned), *_links(run)]


@dataclass
class _Call:
    """A collective: the rows of what each rank gave and got."""

    given: dict[int, int] = field(default_factory=dict)
    got: dict[int, int] = field(default_factory=dict)


def _collectives(run: Columns) -> list[Broken]:
    """Return the collectives recorded by `watch` with outputs that do not follow from their inputs."""
    rows = np.flatnonzero(run.named("kind", *COLLECTIVES) & run.named("axis", "group"))
    calls: dict[tuple[int, ...], _Call] = {}
    for row in rows[np.argsort(run["order"][rows], kind="stable")].tolist():
        call = calls.setdefault(tuple(int(run[c][row]) for c in ("step", "label", "group")), _Call())
        side = call.given if run.name("kind", row) == "collective_in" else call.got
        side.setdefault(int(run["rank"][row]), row)
    found = []
    for call in calls.values():
        some = next(iter({**call.got, **call.given}.values()))
        sizes = {int(run["numel"][row]) for row in call.given.values()}
        if len(call.given) == run.name("group", some).count(",") + 1 and len(sizes) == 1:
            found += _call(run, call, some)
    return found


def _call(run: Columns, call: _Call, some: int) -> list[Broken]:
    """Check one collective with recorded inputs of all ranks; `some` is one of its rows."""
    op, label = run.name("op", some), run.name("label", some)
    given, got = list(call.given.values()), list(call.got.values())
    wrong: list[int] = []
    if op == "all_gather":
        total = sum(int(run.digest[row]) for row in given) & _MASK
        wrong = [row for row in got if int(run.digest[row]) != total]
    elif op == "broadcast":
        sent = {int(run.digest[row]) for row in given}
        wrong = [row for row in got if int(run.digest[row]) not in sent]
    elif label.endswith((".sum", ".avg")) and run.name("dtype", some).startswith(("float", "bfloat")):
        scale = 1 / len(given) if label.endswith(".avg") else 1.0
        outs = [got] if op == "reduce_scatter" and len(got) == len(given) else []
        outs = [[row] for row in got] if op == "all_reduce" else outs
        wrong = [rows[0] for rows in outs if not adds_up(run, given, rows, scale, SUM_ROUNDINGS)]
    if not wrong:
        return []
    ranks, step = run.name("group", some).replace(",", ", "), int(run["step"][some])
    text = (
        f"the {op} over ranks {ranks} ({label}, step {step}) left "
        f"rank {int(run['rank'][wrong[0]])} with something else than what its ranks put in"
    )
    return [Broken("collective", text, wrong[0], (*wrong,))]


def adds_up(run: Columns, addends: Sequence[int], whole: Sequence[int], scale: float, roundings: int) -> bool:
    """Return whether rows are, by their sketches and sums, `scale` times the sum of others, added in any order.

    Rounding moves a sketch by at most the sum of the magnitudes that it moves each element by.
    """
    if any(run["non_finite"][row] for row in (*addends, *whole)):
        return True
    left = np.column_stack([run.sketch[list(addends)], run.reals["sum"][list(addends)]]).sum(0) * scale
    right = np.column_stack([run.sketch[list(whole)], run.reals["sum"][list(whole)]]).sum(0)
    size = sum(
        math.sqrt(float(run["numel"][row]) * max(float(run.reals["sum_squares"][row]), 0.0))
        for row in addends
    )
    unit = max(least_roundoff(run.name("dtype", row)) for row in (*addends, *whole))
    allowed = ((len(addends) + roundings) * unit + LEAST_TOLERANCE) * abs(scale) * size
    return bool((np.abs(left - right) <= allowed).all())


def _gradients(run: Columns) -> list[Broken]:
    """Return reduced gradients that are not the common factor times the sum of what the backwards added."""
    local = _by_parameter(
        run, np.flatnonzero(run.named("kind", "param_grad_local") & run.named("phase", "backward"))
    )
    if not local:
        return []
    reduced = _by_parameter(
        run, np.flatnonzero(run.named("kind", "param_grad") & run.named("phase", "reduce"))
    )
    found = []
    for step in sorted({key[0] for key in local}):
        here = {key: rows for key, rows in local.items() if key[0] == step and key in reduced}
        most = max((len(rows) for rows in here.values()), default=0)
        whole = {key: rows for key, rows in here.items() if len(rows) == most}
        factor = _common_factor(run, whole, reduced)
        if factor is None:
            continue
        wrong = [row for key, rows in whole.items() for row in _unlike(run, rows, reduced[key], factor)[:1]]
        if len(wrong) > (1 - MOSTLY) * len(whole):
            continue  # this trainer makes gradients otherwise
        for row in wrong:
            rank = int(run["rank"][row])
            text = (
                f"{run.name('tensor', row)} (step {step}, rank {rank}) is not {factor:.4g} times the sum of what the "
                f"backwards of {most} micro-batches and ranks added, as the other gradients are"
            )
            found.append(Broken("gradient", text, row, (row,)))
    return found


def _unlike(run: Columns, addends: list[int], reduced: list[int], factor: float) -> list[int]:
    """Return the reduced rows that are not a multiple of their addends' sum; a factor of its own may be intended."""
    total = run.sketch[addends].sum(0)
    found = []
    for row in reduced:
        own = float(total @ run.sketch[row]) / float(total @ total) if float(total @ total) > 0 else factor
        if not any(adds_up(run, addends, [row], scale, FUNCTION_ROUNDINGS) for scale in (factor, own)):
            found.append(row)
    return found


def _by_parameter(run: Columns, rows: np.ndarray) -> dict[_Key, list[int]]:
    """Return rows by step, tensor, boxes and dtype: what is added into one gradient."""
    found: dict[_Key, list[int]] = {}
    for row in rows.tolist():
        part = ",".join(p for p in run.name("partial", row).split(",") if p and not p.startswith("dp="))
        if part:
            continue  # a copy or a part: what model-parallel ranks add to each other is not known
        key = (int(run["step"][row]), int(run["tensor"][row]), int(run["boxes"][row]), int(run["dtype"][row]))
        found.setdefault(key, []).append(row)
    return found


def _common_factor(
    run: Columns, addends: dict[_Key, list[int]], reduced: dict[_Key, list[int]]
) -> float | None:
    """Return the factor between gradients and sums on which most parameters agree; None where few were recorded."""
    ratios = []
    for key, rows in addends.items():
        total, made = run.sketch[rows].sum(0), run.sketch[reduced[key][0]]
        with np.errstate(over="ignore"):
            power = float(total @ total)
        if power > 0 and math.isfinite(power) and int(run["numel"][rows[0]]) >= LEAST_FITTED:
            ratios.append(float(total @ made) / power)
    if len(ratios) < LEAST_GRADIENTS:
        return None
    middle = sorted(ratios)[len(ratios) // 2]
    near = sum(abs(ratio - middle) <= abs(middle) * MOSTLY_NEAR for ratio in ratios)
    if near < MOSTLY * len(ratios) or not math.isfinite(middle) or middle == 0:
        return None
    return _whole(middle)


def _whole(factor: float) -> float:
    """Return 1/n where a factor is that within the sketches' noise, else the factor."""
    inverse = 1 / factor
    whole = round(inverse) if math.isfinite(inverse) else 0
    return 1 / whole if whole and abs(inverse / whole - 1) < WHOLE_INVERSE else factor


def _between_steps(run: Columns, owned: Mask) -> list[Broken]:
    """Return the parameters that changed between two steps on some of their ranks, or lost their update."""
    found = []
    for _, pairs in sorted(changed_weights(run).items()):
        own = [pair for pair in pairs if not owned[pair[0]]]
        if own and not intended(run, pairs):
            found += [
                Broken("between_steps", sentence_of(run, (left, row)), row, (left, row)) for left, row in own
            ]
    return found


def _links(run: Columns) -> list[Broken]:
    """Return the messages between stages that did not arrive, where most of the run's did."""
    gave = _messages(run, np.flatnonzero(run.named("tensor", "out") & run.named("kind", "activation")), 1)
    got = _messages(run, np.flatnonzero(run.named("tensor", "in.0") & run.named("kind", "input")), 0)
    pairs = [(gave[key], row) for key, row in got.items() if key in gave]
    wrong = [(a, b) for a, b in pairs if run.digest[a] != run.digest[b]]
    if not wrong or 2 * len(wrong) >= len(pairs):
        return []
    found = []
    for a, b in wrong:
        stage, step, batch, rank = (int(run[c][b]) for c in ("pp", "step", "micro_batch", "rank"))
        text = (
            f"what stage {stage} got (step {step}, micro-batch {batch}, rank {rank}) is not what rank "
            f"{int(run['rank'][a])} of the stage before gave"
        )
        found.append(Broken("message", text, b, (a, b)))
    return found


def _messages(run: Columns, rows: Iterable[int], ahead: int) -> dict[tuple[int, ...], int]:
    """Return rows by what identifies a message to the stage `ahead`; what a stage does several times is left out."""
    columns = ("step", "micro_batch", "tp", "cp", "dp", "global_shape", "boxes", "dtype")
    found: dict[tuple[int, ...], int] = {}
    twice = set()
    for row in np.asarray(rows).tolist():
        if run.name("phase", row) != "forward":
            continue
        key = (int(run["pp"][row]) + ahead, *(int(run[c][row]) for c in columns))
        if key in found:
            twice.add(key)
        found[key] = row
    return {key: row for key, row in found.items() if key not in twice}
