"""Finds calls that ended just before a dump was written, or by a time-out, from the recorder's own bookkeeping.

NCCL's watchdog looks at the calls that are not done ten times a second, and retires what has ended. A dump that is
written asks the devices once more. A call that reads as completed and is not retired has therefore ended since the
watchdog last looked. After a time-out the watchdog aborts what is outstanding, and such calls read as completed, too:
they ended as long after they were issued as the time-out is, and the rank issued nothing in the meantime. Part of
`entries`.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from tracekit.dumps.fields import integer
from tracekit.thresholds.dumps import ABORT_SHARE, MOVED_LATELY_NS, USUAL_TIMEOUT_MS
from tracekit.units import NS_PER_MS

CREATED, ENDED = "time_created_ns", "time_discovered_completed_ns"


def moved_lately(entries: Sequence[Any], unretired: Sequence[Any], open_: Iterable[Any]) -> bool:
    """Return whether a device has finished calls since its watchdog last looked, before the first unfinished one.

    entries: all of the ring; unretired: completed calls that are not retired; open_: calls that are not done. The
    end of a call that is not retired was found when the dump was written. Where no such call was issued within a second
    before, and none retired, the watchdog may have stopped, or there is none. A call issued after one that is not done
    shows nothing: another thread's may go on while the job hangs.
    """
    first = min((_time(entry, CREATED) for entry in open_), default=None)
    before = [e for e in unretired if first is None or _time(e, CREATED) < first]
    ended = max((_time(e, ENDED) for e in before), default=0)
    retired = (e for e in entries if isinstance(e, dict) and e.get("retired") is True)
    active = max([*(_time(e, CREATED) for e in before), *(_time(e, ENDED) for e in retired)], default=0)
    return 0 <= ended - active <= MOVED_LATELY_NS and active > 0


def ended_late(entry: dict[str, Any], last_issued: int) -> bool:
    """Return whether a call that is done may have been ended by a time-out, on this rank or another.

    last_issued: when the rank issued its last call (ns). The end of such a call was found a time-out after its issue,
    or, if the watchdog has not retired it, a good part of that; on a rank that issued later calls it had finished.
    """
    ended, issued = _time(entry, ENDED), _time(entry, CREATED)
    lasted = ended - issued
    share = 1.0 if entry.get("retired") is True else ABORT_SHARE
    limit = share * (integer(entry.get("timeout_ms")) or USUAL_TIMEOUT_MS) * NS_PER_MS
    return min(ended, issued) > 0 and lasted >= limit and last_issued - issued <= (1 - ABORT_SHARE) * lasted


def _time(entry: Any, key: str) -> int:
    """Return a time of an entry (ns), 0 if it is missing."""
    return integer(entry.get(key)) or 0
