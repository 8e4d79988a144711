"""Hosts that launch late, or slowly."""

from typing import Final

LAUNCHED_NS: Final = 50_000
"""A kernel that starts within this time of its launch found an idle device: a launch takes 5 to 30 us to reach it."""

HOST_SILENT_NS: Final = 100_000
"""A host that works records a call or an operator at least so often: Python between two of them takes 10 to 60 us. Gaps
of a device up to this length may be the pace of a usual host; longer ones are not."""

QUEUE_ROOM: Final = 32
"""Kernels that wait for a device with a queue that surely has room: it takes a thousand, rarely less. When it is full,
a host waits in its launch."""

OPERATOR_NS: Final = 2_000_000
"""An operator that lasts longer counts by what is recorded inside it: it may wait for its device, or for others."""
