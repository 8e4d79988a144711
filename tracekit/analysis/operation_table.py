"""All communication of a run as one Arrow table, for questions that no command asks."""

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from tracekit.analysis.breakdown.parts import waits_known
from tracekit.analysis.slowrank.opened import opened
from tracekit.arrays import from_numpy, from_strings
from tracekit.rank_events.coded_words import Codes, numbered
from tracekit.store import Run
from tracekit.timing.measured import StepRange


def operations(
    run: Run,
    mesh: dict[str, int] | None = None,
    order: Sequence[str] | None = None,
    steps: Sequence[StepRange] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pa.Table:
    """Return the communication of all ranks as an Arrow table, one row an operation, by rank and in order of start.

    `rank`; `step`, null outside every step; `analysed`, whether that step is one that answers rest on; `axis`, as `tp`
    or `cp_dp`; `op`; `start_ns`, `end_ns` on the rank's own clock; `exposed_ns`, for which compute waited;
    `wait_ns`, until the last member came, null if the traces do not show it; `instance`, equal on all members of one
    communication, null if no partner was found; `elements`, null if unknown. Numbers share the memory of the
    analysis; `to_pandas()` copies. `mesh`, `order`, `steps`, `progress` are as for `tracekit.slowrank`.

    Raises UsageError, MeshError and InputError as `tracekit.breakdown` does.
    """
    case, _ = opened(run, mesh, order, steps, progress)
    ops = case.ops
    elements = np.concatenate([ops.per_rank[rank].nelems for rank in ops.ranks])
    return pa.table(
        {
            "rank": from_numpy(ops.rank),
            "step": from_numpy(ops.step, ops.step < 0),
            "analysed": from_numpy(case.analysed),
            "axis": _words(*numbered(case.axis[:])),
            "op": _words(*ops.kinds),
            "start_ns": from_numpy(ops.start),
            "end_ns": from_numpy(ops.end),
            "exposed_ns": from_numpy(ops.exposed),
            "wait_ns": from_numpy(case.waits.held, ~waits_known(case)),
            "instance": from_numpy(ops.instance, ops.instance < 0),
            "elements": from_numpy(elements, elements < 0),
        }
    )


def _words(words: Sequence[str], code: Codes) -> pa.Array:
    """A dictionary array of `words`; `code` is the index of each entry's."""
    return pa.DictionaryArray.from_arrays(from_numpy(code), from_strings(words))
