"""The collective of a kernel without arguments, from the title around it: an all-to-all is a `SendRecv` kernel too.

Every collective of the legacy backend has a title such as `nccl:all_to_all`, on the host around its launch and on the
device around its kernel, and a call such as `c10d::alltoall_base_` around both.
"""

import re

import numpy as np
import pyarrow as pa

from tracekit.intervals import I64
from tracekit.rank_events.event_columns import Values, filled, matches
from tracekit.rank_events.host_events import Enclosing, Host
from tracekit.rank_events.kernel_records import Joined
from tracekit.rank_events.operation_names import UNDIRECTED, canonical_op

_TITLE = re.compile(r"^(?:nccl:|c10d::)(\w+)$")


class CollectiveTitles:
    """Finds the collective that a title or call around a kernel names, for the kernels of one rank."""

    def __init__(self, events: pa.Table, cat: Values, host: Host, rows: I64) -> None:
        self._rows = rows
        self._op = matches(events, "name", _collective)
        titled = np.flatnonzero(filled(events, "name", _collective))
        on_device = np.isin(cat[titled], ["gpu_user_annotation"])
        self._on_host = Enclosing(host, titled[~on_device])
        self._on_device = Enclosing(host, titled[on_device])

    def of(self, joined: Joined, entry: int) -> str | None:
        """Return the collective of an operation; None where no title or call names one."""
        launch, kernel = int(joined.launch[entry]), int(self._rows[joined.kernel[entry]])
        row = self._on_host.around(launch) if launch >= 0 else -1
        row = self._on_device.around(kernel) if row < 0 else row
        return str(self._op[row]) if row >= 0 else None


def _collective(name: str | None) -> str | None:
    """Return the collective that a title or call names; None for messages and other names."""
    found = _TITLE.match(name or "")
    op = canonical_op(found.group(1)) if found else "other"
    return None if op in {*UNDIRECTED, "other"} else op
