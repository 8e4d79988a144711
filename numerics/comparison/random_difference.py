"""Whether two runs part by chance: other random numbers in a forward, or inputs that were drawn again.

What follows from such numbers cannot agree, in whatever order sums are made. Each run is then proved by itself, and how
much each position counts, which does not depend on them, is compared.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from numerics.columns import Columns
from numerics.comparison.broken_invariants.random_numbers import generator_moves
from numerics.comparison.first_divergence import first_of
from numerics.comparison.joins.tensor_table import Status, TensorTable
from numerics.comparison.summary import rows_of
from numerics.comparison.verdict import Apart, Case
from numerics.formats import UNIT_ROUNDOFF, least_roundoff
from numerics.thresholds.comparison import DRAWN_APART, DRAWN_BEFORE

if TYPE_CHECKING:
    from numerics.local.proof import LocalProof


def parted_by_chance(case: Case, proof: "LocalProof") -> Apart | None:
    """Return where a proved run parts from its baseline by random numbers; None where nothing shows that."""
    if case.tensors is None or case.baseline is None:
        return None
    inputs = _drawn_inputs(case.run, case.baseline, draws=bool(proof.draws.random))
    if inputs is not None:
        return Apart(*inputs, inputs=True)
    found = _in_forward(case.run, case.tensors, random) if (random := proof.draws.random) else None
    return replace(found, sentence=f"{found.sentence} ({case.goes_on})") if found and case.goes_on else found


def perhaps_by_chance(case: Case) -> Apart | None:
    """Return where a run may part from its baseline by random numbers, without a model that says what draws them.

    An output that differs far more than all before it was computed otherwise, or drawn. None where no generator moves.
    """
    if case.tensors is None or case.baseline is None:
        return None
    inputs = _drawn_inputs(case.run, case.baseline, draws=True)
    if inputs is not None:
        return Apart(*inputs, inputs=True)
    if not (generator_moves(case.run) and generator_moves(case.baseline)):
        return None
    forward = _forward(case.run, case.tensors)
    found = _first_apart(case.run, case.tensors, forward, forward)
    if not found:
        return None
    return Apart(f"both drew random numbers, and these may be the cause: {found}", certain=False)


def _drawn_inputs(run: Columns, baseline: Columns, *, draws: bool) -> tuple[str, bool] | None:
    """Return what `drawn_inputs` does; nothing is imported for captures that hold no values."""
    if not run.capture.values or not baseline.capture.values:
        return None
    from numerics.comparison.random_inputs import drawn_inputs

    return drawn_inputs(run, baseline, draws=draws)


def _in_forward(run: Columns, tensors: TensorTable, random: Collection[str]) -> Apart | None:
    """Return the first output that random numbers change directly and that differs far more than all before it."""
    forward = _forward(run, tensors)
    drawn = forward & np.isin(tensors.tensor, [run.names.number(name) for name in random])
    if not forward.any():
        return Apart(
            f"the model draws random numbers (for {min(random)}), and the runs have no activation in common that would "
            "show whether they drew the same",
            certain=False,
        )
    found = _first_apart(run, tensors, drawn, forward)
    return Apart(f"the runs drew other random numbers: {found}") if found else None


def _forward(run: Columns, tensors: TensorTable) -> np.ndarray:
    """Mark the outputs of forwards that both runs recorded, (entries,) bool."""
    phase, kind = (run.names.number(word) for word in ("forward", "activation"))
    return np.asarray(
        (tensors.phase == phase) & (tensors.kind == kind) & (tensors.status != Status.UNMATCHED)
    )


def _first_apart(run: Columns, tensors: TensorTable, asked: np.ndarray, forward: np.ndarray) -> str:
    """Return in words the first of the `asked` outputs that differs far more than order makes, and than all before."""
    rows = first_of(run, rows_of(run, tensors, asked & (tensors.relative > _allowed(run, tensors))))
    if not rows:
        return ""
    at = asked & (tensors.tensor == run["tensor"][rows[0]]) & (tensors.step == run["step"][rows[0]])
    size, before = float(np.nanmax(tensors.relative[at])), _before(run, tensors, forward, rows[0])
    if size <= DRAWN_BEFORE * before:
        return ""
    what = f"{run.name('tensor', rows[0])} at step {int(run['step'][rows[0]])}"
    near = f"all before it by {before:.2g} at most" if before else "nothing before it"
    return f"{what} differs by {size:.2g} of its size, {near}"


def _allowed(run: Columns, tensors: TensorTable) -> np.ndarray:
    """Return by entry the relative difference that order makes before anything was drawn, (entries,) float64."""
    units = {number: least_roundoff(run.names.text(number)) for number in np.unique(run["dtype"]).tolist()}
    units = {n: u if run.names.text(n) in UNIT_ROUNDOFF else 0.0 for n, u in units.items()}
    held = run["dtype"][np.maximum(tensors.left, 0)]
    return np.array([DRAWN_APART * units[int(n)] for n in held])


def _before(run: Columns, tensors: TensorTable, chosen: np.ndarray, row: int) -> float:
    """Return the largest relative difference of what the row's rank computed before it in its step's forward."""
    left = np.maximum(tensors.left, 0)
    earlier = chosen & (tensors.left >= 0) & (tensors.step == run["step"][row])
    earlier &= (run["rank"][left] == run["rank"][row]) & (run["order"][left] < run["order"][row])
    found = np.where(tensors.status == Status.DIFFERENT, tensors.relative, 0.0)[earlier]
    return float(np.nan_to_num(found).max(initial=0.0))
