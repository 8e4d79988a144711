"""Thresholds of hosts that launch late or slowly."""

from typing import Final

HOST_PACE: Final = 1.25
"""Largest ratio of the times between launches of two equally fast hosts: hosts of one kind vary less."""

LAUNCHED_NS: Final = 50_000
"""A kernel that starts within this time of its launch found an idle device: a launch takes 5 to 30 us to reach it."""

QUEUED_LONGER: Final = 4.0
"""Ratio of the time in the peers' queues to that on a late rank, from which the late rank's host is at fault."""

LAUNCH_PEERS: Final = 4
"""Peers with launch times given to a rank to price its host: the prices agree within a tenth for a slow host."""

LAUNCH_CANDIDATES: Final = 2
"""Ranks checked for a slow host, longest awaited first: partners of a slow host may come last as well."""

HOST_SILENT_NS: Final = 100_000
"""Longest time in which a working host records no call or operator: Python between two of them takes 10 to 60 us. Gaps
of a device up to this length may be the pace of a usual host; longer ones are not."""

QUEUE_ROOM: Final = 32
"""Kernels that wait for a device while its queue has room for certain: it takes a thousand, rarely less. When it is
full, the host blocks in its launch."""

OPERATOR_NS: Final = 2_000_000
"""A longer operator counts by the records inside it: it may wait for its device, or for other ranks."""
