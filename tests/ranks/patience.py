"""How long to wait on this machine: a limit that is right on a quiet one, longer where others compete for it."""

import os

LONGEST = 30.0
"""Factor that no load exceeds: a test that hangs must still end."""


def patience(seconds: float) -> float:
    """Seconds stretched by the processes that wanted each core in the last minute; unchanged on a quiet machine.

    A time-out of a planted hang has to be longer than any rank's share of the machine can come late.
    """
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return seconds * min(max(1.0, busy), LONGEST)
