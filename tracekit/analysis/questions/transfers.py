"""Typical transfers: no longer than the median of the same message along the same axes."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracekit.analysis.slowrank.case import Case
from tracekit.rank_events.coded_words import among, numbered
from tracekit.rank_events.operation_names import MESSAGES
from tracekit.steps.steps import F64

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Transfers:
    """The matched operations of a case as transfers; all arrays have one entry an instance.

    late: excess of the transfer over the median of the same message, ns; 0 if it is not longer, or unknown.
    """

    late: F64
    axes: tuple[frozenset[str], ...]  # by channel: the axes that its members differ along
    channel: npt.NDArray[np.int64]
    op: npt.NDArray[np.object_]
    inside: npt.NDArray[np.object_]  # the axis inside another along which it runs, empty where there is none

    def along(self, axis: str) -> Mask:
        """Whether each instance runs along `axis`; groups that extend along several axes count with each of them."""
        within = np.array([axis in axes for axes in self.axes] or [False])
        return np.asarray(np.where(self.inside == "", within[self.channel], self.inside == axis), bool)

    def of_type(self, op: str) -> Mask:
        """Whether each instance is the operation `op`; a send and its receive are one message."""
        names = MESSAGES if op in MESSAGES else (op,)
        return among(self.op, names)

    def typical(self, recorded: F64, fixed: Mask) -> F64:
        """The `recorded` transfers (ns), made typical for `fixed` instances."""
        return np.where(fixed, np.maximum(recorded - self.late, 0.0), recorded)


def transfers_of(case: Case) -> Transfers:
    """Return the transfers of `case`; a message that travels before its receive is posted counts by its delivery."""
    ops, waits = case.ops, case.waits
    channel = ops.channel[waits.first_row]
    named = [case.axes_of(c) for c in ops.channels]
    _, kind = np.unique([f"{'p2p' if c.p2p else ''}{n}" for c, n in zip(ops.channels, named, strict=True)] or [""],
                        return_inverse=True)  # fmt: skip
    token, code = numbered(ops.token[waits.first_row])
    message = kind[channel] * max(len(token), 1) + code
    delivery = waits.delivery.astype(np.float64)
    known = waits.complete & waits.timed & case.analysed[waits.first_row]
    late = np.zeros(len(delivery))
    order = np.flatnonzero(known)
    order = order[np.argsort(message[order], kind="stable")]
    for same in np.split(order, np.flatnonzero(np.diff(message[order])) + 1):
        if len(same):
            late[same] = np.maximum(delivery[same] - np.median(delivery[same]), 0.0)
    axes = tuple(frozenset(n) for n in named)
    return Transfers(late, axes, channel, ops.op[waits.first_row], case.inside[waits.first_row])
