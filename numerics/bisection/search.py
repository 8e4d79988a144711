"""Narrows down the first divergent step of a pair of runs, and compares the pair there.

A round runs both commands whole and records a few steps of them, spread over those in question; the first of them that
differs and the last before it that does not bound the next round. What differs stays different, because weights feed it
back; so N steps take O(log N) rounds. The last round records the values of the one step that is left.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from numerics.columns import Columns, Names, read_columns
from numerics.comparison.compare import Options, compare
from numerics.comparison.joins.tensor_table import Status, by_tensor
from numerics.comparison.preconditions import why_incomparable
from numerics.findings import CompareFinding
from numerics.schema import Level
from numerics.store import open_capture
from numerics.thresholds.local import PROBED_STEPS
from tracekit.errors import InputError

if TYPE_CHECKING:
    from numerics.local.proof import LocalProof

BISECT_SCHEMA: Final = "numerics.bisect/1"
Record = Callable[[Sequence[int], Level], tuple[Path, Path]]
"""Runs both commands, records the given steps at a level, and returns the two run folders."""
Prove = Callable[[Columns], "LocalProof"]


_WHOLE: Final = (
    "--model FILE.py:FUNCTION judges this step by itself; of a trainer with a replay, capture both runs whole "
    "({steps} steps suffice) for numerics compare"
)
"""What decides after a bisection by bits: a replay needs all steps before, which a bisection does not record."""


@dataclass(frozen=True)
class Round:
    """The steps that a round recorded, and those of them that differ."""

    probed: tuple[int, ...]
    divergent: tuple[int, ...]


@dataclass(frozen=True)
class BisectFinding:
    """The answer of `numerics bisect` (JSON contract `numerics.bisect/1`).

    `first_step` is the first divergent step: -1 where the runs differ before the first step, None where none of `steps`
    does. `compare` is the answer of `numerics compare` on that step (on the last step where there is none).
    """

    steps: int
    first_step: int | None
    rounds: tuple[Round, ...]
    compare: CompareFinding


def bisect(steps: int, record: Record, prove: Prove | None = None) -> BisectFinding:
    """Return the first divergent step of `steps`, and the comparison of the pair there.

    A step is divergent if a computed tensor differs in bits; with `prove`, if the run's own local proof finds it wrong,
    which separates bugs from drift. InputError where a run recorded no such step or cannot be compared.
    """
    level: Level = "digest" if prove is None else "tensors"
    rounds: list[Round] = []
    before, found = -2, steps
    while found - before > 1:
        probed = probes(before, found, steps)
        pair = record(probed, level)
        wrong = _divergent(*pair, probed, prove)
        rounds.append(Round(probed, tuple(wrong)))
        known = [step for step in probed if step not in wrong]
        found = min([*wrong, found])
        before = max([step for step in known if step < found], default=before)
        if found == steps or found <= 0:
            break
    pair = record([min(max(found, 0), steps - 1)], "tensors")
    finding = compare(*pair, Options(prove=prove))
    if finding.verdict == "undecided" and prove is None:
        finding = replace(finding, next=_WHOLE.format(steps=max(found, 0) + 1))
    return BisectFinding(steps, None if found == steps else found, tuple(rounds), finding)


def probes(before: int, found: int, steps: int) -> tuple[int, ...]:
    """Return the steps to record: at most `PROBED_STEPS` between two, and the ends of all where nothing is known."""
    if found == steps:
        return tuple(sorted({round(i * (steps - 1) / (PROBED_STEPS - 1)) for i in range(PROBED_STEPS)}))
    between = range(before + 1, found)
    count = min(PROBED_STEPS, len(between))
    return tuple(sorted({between[(2 * i + 1) * len(between) // (2 * count)] for i in range(count)}))


def rounds_needed(steps: int) -> int:
    """Return how many rounds a bisection makes at most, the last comparison included."""
    return 1 + math.ceil(math.log(max(steps, 2), PROBED_STEPS + 1)) + 1


def _divergent(parallel: Path, baseline: Path, probed: Sequence[int], prove: Prove | None) -> list[int]:
    """Return the recorded steps in which the runs differ; -1 means the values before the first step."""
    names = Names()
    run, base = (read_columns(open_capture(folder), names) for folder in (parallel, baseline))
    for side in (run, base):
        missing = sorted(set(probed) - set(side["step"].tolist()))
        if missing:
            last = int(side["step"].max())
            raise InputError(
                f"{side.capture.folder}: step {missing[0]} was not recorded, the last one is {last}; give --steps "
                f"{last + 1}, or a command that makes more"
            )
    reason = why_incomparable(run.capture, base.capture)
    if reason is not None:
        raise InputError(f"{reason}; give two commands that compute the same thing")
    if prove is not None:
        return sorted({wrong.step for wrong in prove(run).wrong})
    table = by_tensor(run, base)
    if not bool((table.status != Status.UNMATCHED).any()):
        raise InputError(
            f"{parallel} and {baseline} have no tensor in common; give two commands that train one model"
        )
    metric = np.isin(table.kind, [names.number("metric")])
    return sorted({int(step) for step in table.step[(table.status == Status.DIFFERENT) & ~metric]})
