"""NVTX ranges that mark steps: a name that repeats on every rank, numbered, or covering nearly all of the time.

`step 7`, `iteration_12`, `ProfilerStep#3` bear the number of the step. A range without a number (`train_step`) counts
as the step where it is all that the host does, and all ranks have equally many. Layers, passes and updates repeat as
well and are no steps: their numbers begin again, and each covers a part only.
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tracekit.ingest.nsys.survey import Process
from tracekit.thresholds.ingest import MAX_STEP
from tracekit.thresholds.nsys import LEAST_MARKS, MARKED_SHARE

_NUMBERED: Final = re.compile(r"^(.*?)(\d{1,10})(\D*)$")
_STEP: Final = re.compile(r"(?:^|[^a-z]|train|profiler|global)(?:step|iter)", re.IGNORECASE)
_SMALLER: Final = re.compile(r"micro|layer|sub|optim|token|decod", re.IGNORECASE)
Spans = dict[int, tuple[int, int]]
"""By number of a step its begin and end, ns."""


@dataclass(frozen=True)
class Steps:
    """name: of the ranges, with # for the number. spans: by process. names: of the ranges that are replaced."""

    name: str
    spans: tuple[Spans, ...]


def find_steps(processes: Sequence[Process]) -> Steps | None:
    """Return the steps that ranges of every process mark; None where none do."""
    families = [_families(process) for process in processes]
    common = set.intersection(*(set(own) for own in families)) if families else set()
    fits = []
    for name in sorted(common):
        spans = tuple(own[name] for own in families)
        numbered = "#" in name
        if not numbered and len({len(own) for own in spans}) > 1:
            continue
        covered = sum(end - begin for own in spans for begin, end in own.values())
        fits.append(((numbered, covered), name, spans))
    if not fits:
        return None
    _, name, chosen = max(fits)[:3]
    return Steps(name, chosen)


def _families(process: Process) -> dict[str, Spans]:
    """Return the spans by name of the ranges of one process that may be steps."""
    numbered: dict[tuple[int, str], list[tuple[int, int, int]]] = defaultdict(list)
    found: dict[str, Spans] = {}
    for (thread, title), own in process.ranges.items():
        parts = _NUMBERED.match(title)
        if parts and _STEP.search(parts[1]) and not _SMALLER.search(title):
            name = f"{parts[1]}#{parts[3]}"
            numbered[thread, name] += [(begin, end, int(parts[2])) for begin, end in own]
        elif len(own) >= LEAST_MARKS and _apart(sorted(own)) and _share(own) >= MARKED_SHARE:
            _keep(found, title.replace("#", ""), dict(enumerate(sorted(own))))
    for (_, name), marks in numbered.items():
        marks.sort()
        counts = all(later[2] == former[2] + 1 for former, later in pairwise(marks))
        apart = _apart([(begin, end) for begin, end, _ in marks])
        if len(marks) >= LEAST_MARKS and counts and apart and marks[-1][2] < MAX_STEP:
            _keep(found, name, {n: (begin, end) for begin, end, n in marks})
    return found


def _keep(found: dict[str, Spans], name: str, spans: Spans) -> None:
    """Keep the longer of two families of one name on two threads."""
    if sum(e - b for b, e in spans.values()) > sum(e - b for b, e in found.get(name, {}).values()):
        found[name] = spans


def _apart(spans: Sequence[tuple[int, int]]) -> bool:
    return all(former[1] <= later[0] for former, later in pairwise(spans))


def _share(spans: Sequence[tuple[int, int]]) -> float:
    """Return the share of the time from the first begin to the last end that the spans cover."""
    whole = max(end for _, end in spans) - min(begin for begin, _ in spans)
    return sum(end - begin for begin, end in spans) / whole if whole else 0.0
