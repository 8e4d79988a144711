"""Explains a divergence by another number format than declared: seen in the values, in the plan, or by a replay."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from numerics.columns import Columns, Names, read_columns
from numerics.comparison.explanations.explanation import Explanation, Question
from numerics.comparison.first_divergence import Found
from numerics.comparison.joins.row_table import RowTable, by_row
from numerics.comparison.joins.tensor_table import Status
from numerics.comparison.matched_replay import MakeReplay
from numerics.formats import least_roundoff
from numerics.order.plan_differences import PlanDifference
from numerics.store import open_capture
from numerics.thresholds.comparison import ROUNDED_ONCE
from tracekit.errors import InputError

_TURNED: Final = re.compile(r"rope|\b(q|k|quer\w*|keys?)\b")
"""Tensors in which the format of the rotary table shows first: the table and what it turns."""

_WORDS: Final = {
    "rope=bf16": "the rotary table is held in bfloat16",
    "compute=bf16": "the computation is done in bfloat16",
    "accumulate=bf16": "gradients are accumulated in bfloat16",
    "reduce=bf16": "gradients are reduced in bfloat16",
}


def rounded(question: Question) -> Explanation | None:
    """A rule of `rules.explain`: every value fits bfloat16, the right ones do not, and nothing else is wrong."""
    pairs, run, right = question.pairs, question.pairs.run, question.pairs.replay
    for row in question.rows:
        match = pairs.match(row)
        fits = bool(run.lowbits[row]) and not right.lowbits[match]
        if not fits and not _narrower(run.name("dtype", row), right.name("dtype", match)):
            return None
    if pairs.relative(question.rows) > ROUNDED_ONCE * least_roundoff("bfloat16"):
        return None
    first = question.rows[0]
    there, declared = run.name("dtype", first), right.name("dtype", pairs.match(first))
    held = there if _narrower(there, declared) else "bfloat16"
    return Explanation(f"computed in {held} where {declared} is declared", dtype=held)


def _narrower(dtype: str, other: str) -> bool:
    return least_roundoff(dtype) > least_roundoff(other)


def format_of_plan(plan: Sequence[PlanDifference]) -> Explanation | None:
    """Return that the run reduces in another format than declared, where its plan differs in nothing else."""
    real = [one for one in plan if not one.is_order]
    if not real or any(one.field != "dtype" for one in real):
        return None
    return Explanation(real[0].sentence, dtype=real[0].left)


def narrower_format(run: Columns, found: Found, make: MakeReplay, names: Names) -> Explanation | None:
    """Return the narrower format with which a replay equals the run in every bit; None where none does.

    Only the steps up to the first divergence are replayed, and only with formats that can show first in its tensor.
    """
    for variant in _that_can_show(run, found):
        with tempfile.TemporaryDirectory(prefix="numerics-") as folder:
            try:
                steps = max(found.divergence.step, 0) + 1
                made = make(run.capture.folder, Path(folder) / "replay", variants=[variant], steps=steps)
            except InputError:
                continue
            table = by_row(run, read_columns(open_capture(made), names))
            if table.compared and not _differs(run, table):
                return Explanation(
                    f"{_WORDS[variant]}, not as declared: a replay with {variant} equals the run in every bit",
                    dtype="bfloat16",
                )
    return None


def _that_can_show(run: Columns, found: Found) -> tuple[str, ...]:
    """Return the variants of the replay that can have the first divergence found: everything before it is equal."""
    row = found.rows[0]
    kind, phase = run.name("kind", row), found.divergence.phase
    if kind.startswith("param_grad") or phase == "reduce":
        both = ("accumulate=bf16", "reduce=bf16")
        return both if phase == "backward" else both[::-1]
    if phase != "forward":
        return ()
    turned = ("rope=bf16",) if _TURNED.search(run.name("tensor", row)) else ()
    return turned if run.name("dtype", row) == "bfloat16" else (*turned, "compute=bf16")


def _differs(run: Columns, table: RowTable) -> bool:
    metric = run.named("kind", "metric")
    return bool((np.asarray(table.status == Status.DIFFERENT) & ~metric).any())
