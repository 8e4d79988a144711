"""Which files are of one recording: files of other jobs, and second recordings of the same ranks, are set apart.

Two recordings are never compared. Where most files agree, the others are rejected with the reason; where none of
several recordings has a majority, the input is refused with the names of all.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import PurePath

from tracekit.errors import InputError
from tracekit.ingest.file_result import FileResult
from tracekit.thresholds.ingest import FILES_NAMED


def one_recording(results: Sequence[FileResult]) -> list[FileResult]:
    """Return `results` with the files of other recordings as rejected; InputError where no recording has a majority."""
    return _without_rivals(_of_one_world(results))


def _of_one_world(results: Sequence[FileResult]) -> list[FileResult]:
    """Reject the files whose world size is not that of most files."""
    said = {r.label: sizes for r in results if (sizes := {t.world_size for t in r.tables if t.world_size})}
    votes = Counter(size for sizes in said.values() for size in sizes)
    if len(votes) < 2:
        return list(results)
    (most, first), (_, second) = votes.most_common(2)
    if first == second:
        told = "; ".join(
            f"{n} ranks: {_shown([f for f, s in said.items() if n in s])}" for n in sorted(votes)
        )
        raise InputError(f"the input holds recordings of several jobs ({told}); give the files of one job")
    return [
        _rejected(
            r, f"it is of a job of {_other(said[r.label], most)} ranks, most files are of one of {most}"
        )
        if said.get(r.label, {most}) != {most}
        else r
        for r in results
    ]


def _other(sizes: set[int], most: int) -> int:
    return min(sizes - {most})


def _without_rivals(results: list[FileResult]) -> list[FileResult]:
    """Refuse files that mark the same step of the same rank twice, where that is so for most ranks with several files.

    A step is recorded once, so such files are of two runs. One odd file is left to the choice among a rank's files.
    """
    files: dict[int, list[FileResult]] = defaultdict(list)
    for result in results:
        for table in result.tables:
            files[table.rank].append(result)
    several = {rank: list({r.sha256: r for r in mine}.values()) for rank, mine in files.items()}
    rivals = {rank: pair for rank, mine in several.items() if (pair := _same_step(mine, rank)) is not None}
    if 2 * len(rivals) <= len(files) or len(files) < 2:
        return results
    folders = sorted({str(PurePath(r.label).parent) for mine in several.values() for r in mine})
    rank, (one, other) = min(rivals.items())
    names = f" ({', '.join(folders[:FILES_NAMED])})" if len(folders) > 1 else ""
    raise InputError(
        f"the input holds several recordings of the same ranks{names}: {one.label} and {other.label} both hold step "
        f"{_common_step(one, other, rank)} of rank {rank}; give the files of one recording"
    )


def _same_step(mine: Sequence[FileResult], rank: int) -> tuple[FileResult, FileResult] | None:
    """Two of a rank's files that mark the same step; None where all mark different ones."""
    return next(((a, b) for a, b in combinations(mine[:FILES_NAMED], 2) if _common(a, b, rank)), None)


def _common(one: FileResult, other: FileResult, rank: int) -> frozenset[int]:
    """The steps of `rank` that both files mark."""
    steps = [frozenset[int]().union(*(t.steps for t in r.tables if t.rank == rank)) for r in (one, other)]
    return steps[0] & steps[1]


def _common_step(one: FileResult, other: FileResult, rank: int) -> int:
    return min(_common(one, other, rank))


def _rejected(result: FileResult, reason: str) -> FileResult:
    rank = result.tables[0].rank if len(result.tables) == 1 else None
    return replace(result, status="rejected", reason=reason, rank=rank, tables=(), quality=())


def _shown(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - FILES_NAMED} more" if len(labels) > FILES_NAMED else ""
    return ", ".join(sorted(labels)[:FILES_NAMED]) + more
