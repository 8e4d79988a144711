"""The picture of where two runs differ: modules in execution order, by step and phase."""

import numpy as np

from numerics.columns import Columns
from numerics.comparison.joins.tensor_table import Status, TensorTable
from numerics.findings import Cell
from numerics.keys import Ints
from numerics.thresholds.report import MODULES_DRAWN, STEPS_DRAWN

_LAST = np.iinfo(np.int64).max


def module_map(
    run: Columns, baseline: Columns, table: TensorTable, unexplained: np.ndarray
) -> tuple[Cell, ...]:
    """Return the cells of the picture: modules in execution order, then step, then phase.

    `unexplained` marks entries of `table`, (entries,) bool.
    """
    left = table.left >= 0
    module = np.where(left, run["module"][table.left], baseline["module"][table.right])
    order = np.where(left, run["order"][table.left], baseline["order"][table.right])
    fields: dict[tuple[int, int, int], list[int]] = {}
    place: dict[int, int] = {}
    for entry in np.flatnonzero(table.status != Status.UNMATCHED):
        code = int(module[entry])
        fields.setdefault((code, int(table.step[entry]), int(table.phase[entry])), []).append(int(entry))
        place[code] = min(place.get(code, _LAST), int(order[entry]))
    modules = sorted(place, key=lambda m: (place[m], run.names.text(m)))[:MODULES_DRAWN]
    steps = sorted({step for _, step, _ in fields})[:STEPS_DRAWN]
    kept = sorted(
        (key for key in fields if key[0] in set(modules) and key[1] in set(steps)),
        key=lambda k: (modules.index(k[0]), k[1], k[2]),
    )
    return tuple(_cell(run, table, key, np.array(fields[key]), unexplained) for key in kept)


def _cell(
    run: Columns, table: TensorTable, key: tuple[int, int, int], entries: Ints, unexplained: np.ndarray
) -> Cell:
    """Return the cell of a (module, step, phase); its tensors are the entries of the table."""
    wrong = entries[table.status[entries] == Status.DIFFERENT]
    sizes = table.relative[wrong][np.isfinite(table.relative[wrong])]
    return Cell(
        module=run.names.text(key[0]) or "(model)",
        step=key[1],
        phase=run.names.text(key[2]),
        tensors=len(entries),
        differ=len(wrong),
        unexplained=int(unexplained[wrong].sum()),
        rel=float(sizes.max()) if len(sizes) else None,
    )
