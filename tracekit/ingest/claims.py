"""Selects the files of each rank: copies are read once, windows are joined, and the fullest of several rivals is kept.

Windows follow in order of time. If windows with different paths cover the same time, because each counts from its own
start, they are placed one after the other in order of their names, equally on all ranks.

Frameworks write a folder or a file for each window of the profiler and put the progress of the job into its name:
torchtitan and torchtune `iteration_20/rank3…`, Ray Train `worker_3_epoch_2…`, others `step_100` or `ep0-ba10`. Files of
one rank with paths that differ only in that number are windows of one job. Lightning names the loop (`fit-…`,
`…validation_step…`); steps of each loop are numbered separately. torch's own handler names host and process, and a
process is of one job.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import PurePath
from typing import Final

from tracekit.files.rival_recordings import unpacked
from tracekit.files.witness import WindowName
from tracekit.findings import Quality, Rejected
from tracekit.ingest.file_result import FileResult, RankTable
from tracekit.ingest.identify import HANDLER
from tracekit.thresholds.ingest import MAX_OVERLAP, WINDOW_GAP_NS

PROGRESS = re.compile(
    r"(?<![a-z])((?:iterations?|iters?|it|(?:global[-_]?)?steps?|epochs?|ep|batch(?:es)?|ba|cycles?|windows?)[-_=#]?)"
    r"(\d{1,12})(?!\d)"
)
"""A word for the progress of a job, and its number."""
TRAINING = r"fit|train(?:ing)?"
BESIDE = r"valid(?:ation|ate)?|val|eval(?:uation|uate)?|test(?:ing)?|predict(?:ion)?|sanity"
LOOP = re.compile(rf"(?<![a-z])(?:{TRAINING}|({BESIDE}))(?![a-z])")
"""A word for the loop of a job; the group matches one of `BESIDE`, a loop without training."""
TIME = re.compile(r"\.(\d{9,19})(?=\.pt\.trace\.json)")
PACKED = re.compile(r"\.(?:gz|zst|zstd)$")


def window_name(label: str) -> WindowName | None:
    """Return the window in the path of a trace; None if it names neither progress, loop nor process."""
    *folders, name = PurePath(label.replace("\\", "/").lower()).parts or ("",)
    name = PACKED.sub("", name)
    found = [m for part in (*folders, name) for m in PROGRESS.finditer(part)]
    loops = {m[1] or "" for m in LOOP.finditer(name)}
    handler = HANDLER.match(name)
    if not found and not loops and handler is None:
        return None
    numbers = tuple(int(m[2]) for m in found)
    if not found and handler is not None:
        numbers = tuple(int(m[1]) for m in TIME.finditer(name))
    process = handler is not None and not found
    erased = LOOP.sub("~", TIME.sub("", name) if process else re.sub(r"\d+", "*", name))
    place = "/".join([*(PROGRESS.sub(r"\1*", f) for f in folders), erased])
    loop = min(loops - {""}, default="")
    words = "/".join([*(m[0] for m in found), *([loop] if loop else [])])
    return WindowName(place, numbers, loop, words)


_SAME_TIME: Final = "covers the same time"
_OTHER_START: Final = "counts time from another start"


@dataclass(frozen=True)
class Claim:
    """The events of a rank in one file; shift: the ns that they are moved by, so that windows follow each other."""

    result: FileResult
    table: RankTable
    shift: int = 0

    @property
    def begin(self) -> int:
        """Return the begin of the window after the shift, ns."""
        return self.table.first + self.shift

    @property
    def window(self) -> WindowName | None:
        """The window in the file's path."""
        return window_name(self.result.label)


@dataclass
class Claims:
    """The files that count, windows of a rank in order of time; the other files; and the assumptions."""

    rejected: list[Rejected] = field(default_factory=list)
    quality: list[Quality] = field(default_factory=list)
    chosen: dict[int, list[Claim]] = field(default_factory=dict)

    def choose(self, results: Sequence[FileResult]) -> None:
        """Choose the files of each rank."""
        claims: dict[int, list[Claim]] = defaultdict(list)
        for result in results:
            for table in result.tables:
                claims[table.rank].append(Claim(result, table))
        alone = {rank: self._without_copies(several) for rank, several in claims.items()}
        named = {rank: found for rank, mine in alone.items() if (found := self._by_name(rank, mine))}
        shifts = _shifts([claim for mine in named.values() for claim in mine])
        if shifts:
            note = "each window counts time from its own start: they are placed one after the other, in order of names"
            self.quality.append(Quality("windows_laid_out", None, len(shifts), note))
        for rank, mine in alone.items():
            if rank in named:
                moved = [Claim(c.result, c.table, shifts.get(_numbers(c), 0)) for c in named[rank]]
                self._join(rank, sorted(moved, key=lambda c: (c.begin, c.result.label)))
            else:
                self._join(rank, self._in_time(rank, mine))

    def _without_copies(self, several: Sequence[Claim]) -> list[Claim]:
        """Return the claims of a rank without copies of other files."""
        kept: list[Claim] = []
        for claim in sorted(several, key=lambda c: c.result.label):
            twin = next((k for k in kept if _same(k, claim)), None)
            if twin is None:
                kept.append(claim)
                continue
            same = "bytes" if claim.result.sha256 == twin.result.sha256 else "events"
            detail = f"the same {same} as {twin.result.label}, read once"
            self.quality.append(Quality("duplicate_file", claim.result.label, 1, detail))
        return kept

    def _by_name(self, rank: int, mine: Sequence[Claim]) -> list[Claim]:
        """Return one claim for each window that paths separate; empty if they show fewer than two."""
        windows: dict[tuple[int, ...], list[Claim]] = defaultdict(list)
        for claim in mine:
            windows[_numbers(claim)].append(claim)
        places = {c.window.place if c.window is not None else None for c in mine}
        if len(windows) < 2 or len(places) > 1 or None in places:
            return []
        found = []
        for several in windows.values():
            found += self._in_time(rank, several)
        return found if len(found) == len(windows) else []

    def _in_time(self, rank: int, mine: Sequence[Claim]) -> list[Claim]:
        """Return the claims in order of time where they are windows of one recording, else the fullest one."""
        alone = sorted(mine, key=lambda c: (c.table.first, c.result.label))
        if len(alone) < 2 or not (clash := _clash(alone)):
            return alone
        best = max(alone, key=lambda c: (c.table.events, c.result.label))
        for claim in alone:
            if claim is not best:
                reason = f"rank {rank} is also claimed by {best.result.label}, which holds more and {clash}"
                self.rejected.append(Rejected(claim.result.label, reason, rank))
        return [best]

    def _join(self, rank: int, windows: list[Claim]) -> None:
        """Set `windows`, in order of time, as the events of a rank."""
        if len(windows) > 1:
            names = ", ".join(claim.result.label for claim in windows)
            detail = f"windows of rank {rank} read as one: {names}"
            self.quality.append(Quality("joined_windows", windows[0].result.label, len(windows), detail))
        self.chosen[rank] = windows


def names_of(claims: Sequence[Claim]) -> tuple[str, ...]:
    """Return the names of the windows of a rank, in order: of the paths, else of the files if step numbers recur.

    Empty where there is one window, or where steps continue from window to window, so that they are read as one.
    """
    if len(claims) < 2:
        return ()
    apart = len({_numbers(c) for c in claims}) == len(claims)
    names = _without_common([c.window.name if c.window is not None and apart else "" for c in claims])
    if all(names):
        return names
    again = any(a and b and min(b) <= max(a) for a, b in pairwise(c.table.steps for c in claims))
    files = (PurePath(c.result.label).name for c in claims)
    return tuple(n or file for n, file in zip(names, files, strict=True)) if again else ()


def _without_common(names: Sequence[str]) -> tuple[str, ...]:
    """Return `names` without the parts that all of them have, such as a common epoch."""
    parts = [name.split("/") for name in names]
    common = set.intersection(*map(set, parts))
    return tuple("/".join(p for p in mine if p not in common) for mine in parts)


def _numbers(claim: Claim) -> tuple[int, ...]:
    return claim.window.numbers if claim.window is not None else ()


def _same(one: Claim, other: Claim) -> bool:
    """Whether two files hold the same events of a rank."""
    if one.result.sha256 == other.result.sha256:
        return True
    mine, theirs = one.table, other.table
    facts = [(t.first, t.last, t.events, t.steps, t.world_size) for t in (mine, theirs)]
    return facts[0] == facts[1] and unpacked(one.result.label) == unpacked(other.result.label)


def _clash(windows: Sequence[Claim]) -> str:
    """Return why files of one rank are no windows of one recording; empty where they are."""
    if len({claim.table.world_size for claim in windows}) > 1:
        return "has another world size"
    if len({claim.table.base is None for claim in windows}) > 1:
        return _OTHER_START
    for before, after in pairwise(c.table for c in windows):
        shorter = min(before.last - before.first, after.last - after.first)
        if before.last - after.first > MAX_OVERLAP * shorter:
            return _SAME_TIME
    return ""


def _shifts(named: Sequence[Claim]) -> dict[tuple[int, ...], int]:
    """Return the shift of each window, ns, by its numbers; empty if no rank's windows cover the same time."""
    by_rank: dict[int, list[Claim]] = defaultdict(list)
    spans: dict[tuple[int, ...], tuple[int, int]] = {}
    for claim in named:
        by_rank[claim.table.rank].append(claim)
        first, last = spans.get(_numbers(claim), (claim.table.first, claim.table.last))
        spans[_numbers(claim)] = min(first, claim.table.first), max(last, claim.table.last)
    in_time = (sorted(mine, key=lambda c: c.table.first) for mine in by_rank.values())
    if not any(_clash(mine) in {_SAME_TIME, _OTHER_START} for mine in in_time):
        return {}
    shifts: dict[tuple[int, ...], int] = {}
    end: int | None = None
    for numbers, (first, last) in sorted(spans.items()):
        shifts[numbers] = 0 if end is None else end + WINDOW_GAP_NS - first
        end = last + shifts[numbers]
    return shifts
