"""The rank of each dump: the rank it states, else the one its groups leave, else the one in its file's name.

Files may have any name. A dump of unknown rank is rejected, never guessed. Part of `load`.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tracekit.dumps.rank_dump import RankDump
from tracekit.findings import Quality, Rejected
from tracekit.thresholds.dumps import MAX_RANK

_RANK_WORD = re.compile(r"rank[_\-=.]?(\d{1,8})", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,8}")


@dataclass
class Assignment:
    """Dumps by rank, and the files with a dump without a rank."""

    dumps: dict[int, RankDump] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)

    def give(self, dump: RankDump, rank: int) -> None:
        """Give the dump its rank; the second dump of a rank is rejected."""
        if rank in self.dumps:
            reason = f"second dump of rank {rank} (the first: {self.dumps[rank].path}); keep one of them"
            self.rejected.append(Rejected(dump.path, reason, rank))
            return
        dump.rank = rank
        self.dumps[rank] = dump

    @property
    def renamed(self) -> list[Quality]:
        """Return a quality row if the groups of a dump give another rank than its file's name."""
        renamed = [
            d
            for d in self.dumps.values()
            if (by_name := rank_in_name(d.path)) is not None and by_name != d.rank and d.claimed is None
        ]
        if not renamed:
            return []
        detail = "the rank in the file's name is not the rank in its groups; the rank in its groups was used"
        return [Quality("renamed_files", renamed[0].path, len(renamed), detail)]


def assign_ranks(dumps: Iterable[RankDump]) -> Assignment:
    """Give every dump its rank, the certain ones first: a rank that is taken is no longer possible for the rest."""
    assigned = Assignment()
    named: list[RankDump] = []
    open_: list[RankDump] = []
    for dump in dumps:
        if dump.claimed is not None and 0 <= dump.claimed < MAX_RANK:
            assigned.give(dump, dump.claimed)
        elif dump.candidates is not None and len(dump.candidates) == 1:
            assigned.give(dump, dump.candidates[0])
        elif rank_in_name(dump.path, dump.candidates) is not None:
            named.append(dump)
        else:
            open_.append(dump)
    names = Counter(rank_in_name(d.path, d.candidates) for d in named)
    for dump in named:
        rank = rank_in_name(dump.path, dump.candidates)
        if rank is not None and names[rank] == 1 and rank not in assigned.dumps:
            assigned.give(dump, rank)
        else:
            open_.append(dump)
    for dump in open_:
        left = [r for r in dump.candidates or () if r not in assigned.dumps]
        if len(left) == 1:
            assigned.give(dump, left[0])
            continue
        reason = "neither its groups nor its name show which rank wrote it; put the rank into the file's name"
        assigned.rejected.append(Rejected(dump.path, reason, None))
    return assigned


def rank_in_name(path: str, allowed: Sequence[int] | None = None) -> int | None:
    """Give the rank in a file's name: after the word rank, else the last number; only one of `allowed` if given."""
    name = path.rpartition("/")[2]
    numbers = [int(n) for n in (*_RANK_WORD.findall(name)[-1:], *reversed(_NUMBER.findall(name)))]
    if allowed is not None:
        numbers = [n for n in numbers if n in allowed]
    return numbers[0] if numbers else None
