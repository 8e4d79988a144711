"""Full rings, found from all dumps of a job: all its ranks record with rings of one size."""

from collections.abc import Collection

from tracekit.dumps.rank_dump import RankDump


def forget_cuts(dumps: Collection[RankDump]) -> None:
    """Mark as uncut, in place, the dumps with rings that are not full: they have overwritten nothing outstanding.

    A dump of outstanding calls alone begins with one, too, as does a full ring; but their lengths differ by rank, while
    full rings are as long as the longest.
    """
    size = max((_length(dump) for dump in dumps), default=0)
    cut = [dump for dump in dumps if dump.cut]
    full = [dump for dump in cut if _length(dump) == size]
    for dump in cut:
        dump.cut = _length(dump) == size and 2 * len(full) > len(cut)


def _length(dump: RankDump) -> int:
    """Give the entries of a dump, damaged ones included."""
    return dump.entries + dump.malformed
