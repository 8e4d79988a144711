"""The parts of each rank's step: compute, other own time, and communication by axis, as waits and transfers."""

from typing import Final

import numpy as np

from tracekit.findings.picture import F64
from tracekit.steps.compute_time import compute_in_steps
from tracekit.timing.measured import Measured

COMPUTE: Final = "compute"
HOST: Final = "host and gaps"
WAIT: Final = "waits on"
TRANSFER: Final = "transfers on"


def axes_of_channels(run: Measured) -> list[str]:
    """The name of each channel's axes; the last entry is for operations without a channel."""
    return [*("_".join(run.axes_of(c)) or "other" for c in run.ops.channels), "unknown"]


def parts_of_step(run: Measured) -> dict[str, F64]:
    """Return kind of time → mean of a step of each rank (rows of `run.steps`), ns; the kinds sum to the step.

    Time in which compute is idle for several operations at once is divided among them in proportion.
    """
    steps, ops = run.steps, run.ops
    whole = np.isfinite(steps.own)
    count = np.maximum(whole.sum(axis=1), 1)
    known = whole.any(axis=1)
    computing = np.nansum(np.minimum(compute_in_steps(ops, steps), steps.own), axis=1)
    own = np.nansum(steps.own, axis=1)
    result = {COMPUTE: computing, HOST: own - computing, **_communication(run)}
    for kind, spent in result.items():
        result[kind] = np.where(known, spent / count, np.nan)
    return result


def _communication(run: Measured) -> dict[str, F64]:
    """Kind of exposed communication → its time on each rank over its whole steps, ns."""
    steps, ops = run.steps, run.ops
    row = np.full(max(steps.ranks, default=0) + 1, -1, np.int64)
    row[list(steps.ranks)] = np.arange(len(steps.ranks))
    at = row[ops.rank]
    whole = np.isfinite(steps.own)
    column = np.searchsorted(steps.numbers, ops.step) if steps.labelled else np.zeros(len(at), np.int64)
    kept = run.analysed & whole[at, np.minimum(column, len(steps.numbers) - 1)]
    names, axis = np.unique(np.array(axes_of_channels(run), object).astype(str), return_inverse=True)
    axis = axis[ops.channel]  # channel −1 takes the last name
    waited = run.waits.exposed_wait
    result = {}
    for number, name in enumerate(names.tolist()):
        mine = kept & (axis == number) & (ops.exposed > 0)
        if mine.any():
            for kind, spent in ((WAIT, waited), (TRANSFER, ops.exposed - waited)):
                result[f"{kind} {name}"] = np.bincount(
                    at[mine], spent[mine].astype(np.float64), len(steps.ranks)
                )
    stood = np.nansum(steps.wall - steps.own, axis=1)
    total = np.sum(list(result.values()), axis=0) if result else np.zeros(len(stood))
    share = np.divide(stood, total, out=np.zeros(len(stood)), where=total > 0)
    return {kind: spent * share for kind, spent in result.items() if spent.any()}
