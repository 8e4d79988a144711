"""Separates several recordings of the same ranks: by folder, by name or by time.

A job records each step of each rank once, and step numbers rise with time. Captures of one job hold different steps.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from itertools import combinations
from os.path import commonpath
from pathlib import PurePath

from tracekit.files.witness import Job, Window, Witness
from tracekit.thresholds.ingest import (
    CAPTURES_COMPARED,
    FILES_NAMED,
    JOBS_SEPARATED,
    LONGEST_PAUSE_NS,
    MAX_OVERLAP,
    STEPS_PAUSED,
)

FOLDER = "folder {}"


def by_recording(job: Job) -> list[Job]:
    """Return the job divided into recordings of the same ranks, if two or more ranks have rival files."""
    of_rank: dict[int, list[tuple[Witness, Window]]] = defaultdict(list)
    for file in job.files:
        for window in file.windows:
            of_rank[window.rank].append((file, window))
    rivals: dict[int, list[tuple[str, str]]] = {}
    for rank, mine in of_rank.items():
        compared = sorted(mine, key=lambda c: (c[1].first, c[0].label))[:CAPTURES_COMPARED]
        pairs = [(a[0].label, b[0].label) for a, b in combinations(compared, 2) if _rivals(a, b)]
        if pairs:
            rivals[rank] = pairs
    if len(rivals) < 2:
        return [job]
    pairs = [pair for mine in rivals.values() for pair in mine]
    most = 2 * len(rivals) > len(of_rank)
    for kind, keys in _keys(job.files, sure=most):
        if all(keys[a] != keys[b] for a, b in pairs):
            return _joined(job, kind, keys, pairs)
    return [job]


def _rivals(one: tuple[Witness, Window], other: tuple[Witness, Window]) -> bool:
    """Whether two windows of one rank, in order of time, cannot be captures of one run of one job."""
    (file, before), (later, after) = one, other
    if file.digest == later.digest or file.label == later.label or _copies(one, other):
        return False
    if file.window is not None and file.window.beside(later.window):
        return False
    if file.alone or before.steps & after.steps:
        return True
    moved = None not in {before.host, after.host} and before.host != after.host
    if moved and not (before.steps and after.steps):  # a name of a file says little where the steps go on
        return True
    shorter = min(before.last - before.first, after.last - after.first)
    if before.last - after.first > MAX_OVERLAP * shorter:
        return True
    return bool(before.steps and after.steps) and not _goes_on(before, after)


def _copies(one: tuple[Witness, Window], other: tuple[Witness, Window]) -> bool:
    """Whether both hold the same events, or one file is the other one packed, whole or cut off."""
    (file, mine), (later, theirs) = one, other
    if file.alone or mine.first != theirs.first:
        return False
    whole = (mine.last, mine.events, mine.steps) == (theirs.last, theirs.events, theirs.steps)
    return (whole and mine.events > 0) or unpacked(file.label) == unpacked(later.label)


def unpacked(label: str) -> str:
    """Return the path of a file without the ending of its compression."""
    return re.sub(r"\.(?:gz|zst|zstd)$", "", label, flags=re.IGNORECASE)


def _goes_on(before: Window, after: Window) -> bool:
    """Return whether the steps of a later window are steps that the job would have reached by then."""
    if min(after.steps) <= max(before.steps):
        return False
    usual = (before.last - before.first) // len(before.steps)
    steps = min(after.steps) - max(before.steps)
    return after.first - before.last <= max(LONGEST_PAUSE_NS, STEPS_PAUSED * usual * steps)


def _keys(files: Sequence[Witness], *, sure: bool) -> Iterable[tuple[str, dict[str, str]]]:
    """Yield the ways to separate recordings, by folders, names or times: (description, key by label)."""
    folders = {f.label: PurePath(f.label).parent.parts for f in files}
    for depth in range(max(map(len, folders.values()), default=0)):
        yield FOLDER, {label: (*parts, *[""] * (depth + 1))[depth] for label, parts in folders.items()}
    if sure:
        yield "files {}", {f.label: re.sub(r"\d+", "*", PurePath(f.label).name) for f in files}
        yield "recording {}", _by_time(files)
        yield "recording {}", _by_turn(files)


def _by_time(files: Sequence[Witness]) -> dict[str, str]:
    """Return by label the number of the file's recording time; overlapping windows are of one time."""
    times: dict[str, str] = {}
    number, until = 0, None
    for file in _in_order(files):
        if until is not None and min(w.first for w in file.windows) > until:
            number += 1
        until = max(until or 0, *(w.last for w in file.windows))
        times[file.label] = f"{number + 1:06d}"
    return times


def _in_order(files: Sequence[Witness]) -> list[Witness]:
    """Return the files that hold ranks, in order of time."""
    return sorted((f for f in files if f.windows), key=lambda f: (min(w.first for w in f.windows), f.label))


def _by_turn(files: Sequence[Witness]) -> dict[str, str]:
    """Return by label the number of the file among the files of its rank, in order of time."""
    turns: dict[int, int] = defaultdict(int)
    found: dict[str, str] = {}
    for file in _in_order(files):
        rank = min(w.rank for w in file.windows)
        turns[rank] += 1
        found[file.label] = f"{turns[rank]:06d}"
    return found


def _joined(job: Job, kind: str, keys: dict[str, str], pairs: Collection[tuple[str, str]]) -> list[Job]:
    """Return the job divided by keys; keys without rival files stay in one job."""
    apart = {frozenset((keys[a], keys[b])) for a, b in pairs}
    keys = {f.label: keys.get(f.label, min(keys.values())) for f in job.files}
    parts: list[list[str]] = []
    for key in sorted(set(keys.values())):
        free = (part for part in parts if all(frozenset((key, k)) not in apart for k in part))
        found = next(free, None)
        if found is None:
            parts.append([key])
        else:
            found.append(key)
    if len(parts) > JOBS_SEPARATED:
        return [job]
    return [_part(job, kind, keys, part) for part in parts]


def _part(job: Job, kind: str, keys: dict[str, str], part: Sequence[str]) -> Job:
    """Return the job of some keys; folders are identified by their paths."""
    files = tuple(f for f in job.files if keys[f.label] in part)
    names = [key.lstrip("0") for key in part]
    if kind == FOLDER:
        names = [
            commonpath([str(PurePath(f.label).parent) for f in files if keys[f.label] == k]) for k in part
        ]
    more = f" and {len(names) - FILES_NAMED} more" if len(names) > FILES_NAMED else ""
    return Job(files, kind.format(", ".join(names[:FILES_NAMED]) + more), surely=True)
