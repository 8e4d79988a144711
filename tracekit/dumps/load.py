"""Reads a folder of flight-recorder dumps: the file of each rank, and the last calls of each rank.

`files` finds the files; `workers` has them decoded in bounded processes (`transfer`, `unpickle`, `entries`), which
return only columns; `assign` gives them their ranks.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from tracekit.dumps.assign import assign_ranks, rank_in_name
from tracekit.dumps.files import find_files, logs_in_words, size_of, traces_in_words
from tracekit.dumps.one_job import of_one_job
from tracekit.dumps.rank_dump import RankDump
from tracekit.dumps.transfer import DumpReader, Interner, NotADumpError
from tracekit.errors import InputError, with_rejected
from tracekit.files.discover import Inputs, listed
from tracekit.findings import Quality, Rejected
from tracekit.thresholds.dumps import (
    FILES_A_CHUNK,
    WORKER_BYTES,
    WORKER_SECONDS,
)
from tracekit.workers import Limits, do_all

Progress = Callable[[int, int, int, int], None]
"""Called with files done, files in all, bytes done, bytes in all."""


LIMITS: Final = Limits(
    seconds=WORKER_SECONDS,
    memory=WORKER_BYTES,
    chunk=FILES_A_CHUNK,
    slow="pickle refused: it took longer to decode than any dump does",
    big="pickle refused: it takes more memory than any dump needs",
    broken="pickle refused: decoding it broke the process that tried (memory or nesting beyond bounds)",
)
"""Bounds on decoding one dump."""


@dataclass(frozen=True)
class DumpSet:
    """Every dump that could be read, by rank, and the files that could not."""

    dumps: dict[int, RankDump]
    rejected: tuple[Rejected, ...]
    quality: tuple[Quality, ...]
    world: tuple[int, ...]  # ranks of the job, sorted: the greatest group, and every rank read
    job: int | None = None  # its number, where the input held several jobs
    whole: bool = True  # whether they name all groups; a log names those alone in which a call timed out

    def last_ns(self) -> int:
        """Return when the last call of any rank was issued, ns since 1970; 0 where no dump holds a time."""
        return max((dump.last_created for dump in self.dumps.values()), default=0)


def load_dumps(
    inputs: Inputs,
    jobs: int = 1,
    progress: Progress | None = None,
    *,
    timed: bool = False,
    job: int | None = None,
) -> DumpSet:
    """Give the dumps in the files that `inputs` (files, folders, globs, fsspec URLs) name, read by `jobs` processes.

    timed: also keep when every call ran (`RankDump.timing`). job: which one to read, where there are several.
    progress: called with (files read, all files, bytes read, all bytes).
    Raises InputError if an input names nothing, no file holds a dump, or dumps are of several jobs and `job` is None;
    UsageError if there is no job of that number.
    """
    return load_dumps_without((), inputs, jobs, progress, timed=timed, job=job)


def load_dumps_without(
    beside: Collection[str],
    inputs: Inputs,
    jobs: int = 1,
    progress: Progress | None = None,
    *,
    timed: bool = False,
    job: int | None = None,
) -> DumpSet:
    """Give the dumps in files as `load_dumps` does, without the files `beside`, which are evidence of another kind."""
    inputs = listed(inputs)
    found = find_files(inputs, beside)
    paths = [source.uri for source in found.sources]
    read = _read(paths, found.named, jobs, progress, timed=timed)
    kept, others, number = of_one_job(read.dumps, {p: found.run_of(p) for p in paths}, job)
    assigned = assign_ranks(kept)
    rejected = (*read.rejected, *others, *assigned.rejected, *found.unreadable)
    if not assigned.dumps:
        why = f"; the first: {rejected[0].path}: {rejected[0].reason}" if rejected else ""
        logs = logs_in_words([*found.foreign, *paths])
        problem = f"{', '.join(inputs)}: no usable flight-recorder dump among {len(paths)} files"
        problem += f"{traces_in_words(found)}{logs}{why}"
        error = InputError(f"{problem}; give the folder that holds the dumps")
        raise with_rejected(error, [(r.path, r.reason) for r in rejected[1:]])
    forget_cuts(assigned.dumps.values())
    quality = (*_foreign(read.foreign), *assigned.renamed, *_damage(assigned.dumps.values()))
    world = _world(assigned.dumps)
    return DumpSet(dict(sorted(assigned.dumps.items())), rejected, quality, world, number)


def _world(dumps: Mapping[int, RankDump]) -> tuple[int, ...]:
    """Return the known ranks of the job, sorted: members of groups, ranks with dumps.

    Where no dump lists members, every rank below the last one counts, because ranks are numbered from 0; unless most
    would lack a dump: then the numbers in the names of files may be others.
    """
    world = set(dumps)
    for ranks in {id(g.ranks): g.ranks for d in dumps.values() for g in d.groups}.values():
        world.update(ranks)
    if len(world) == len(dumps) and max(world) < 2 * len(world):
        world.update(range(max(world)))
    return tuple(sorted(world))


@dataclass
class _Read:
    """Dumps in the order of their files, not yet of known ranks, and the files without one."""

    dumps: list[RankDump] = field(default_factory=list)
    rejected: list[Rejected] = field(default_factory=list)
    foreign: int = 0  # files in the folders that hold something else


def _read(
    paths: Sequence[str], named: set[str], jobs: int, progress: Progress | None, *, timed: bool
) -> _Read:
    """Decode all files. A file without a dump is rejected if it is `named` by itself, else it is foreign."""
    sizes = [size_of(p) for p in paths]
    results: dict[int, RankDump | Exception] = {}
    interner = Interner()
    done, total = 0, sum(sizes)
    for index, result in do_all(paths, partial(DumpReader, timed=timed), jobs, LIMITS):
        results[index] = interner.adopt(result)
        done += sizes[index]
        if progress is not None:
            progress(len(results), len(paths), done, total)
    read = _Read()
    for index, path in enumerate(paths):
        found = results[index]
        if isinstance(found, RankDump):
            read.dumps.append(found)
        elif isinstance(found, NotADumpError) and path not in named:
            read.foreign += 1
        else:
            read.rejected.append(Rejected(path, str(found), rank_in_name(path)))
    return read


def _foreign(count: int) -> list[Quality]:
    detail = "files in the folders that hold no dump"
    return [Quality("foreign_files", count=count, detail=detail)] if count else []


def _damage(dumps: Iterable[RankDump]) -> list[Quality]:
    """Say which dumps hold malformed entries, then which are cut off."""
    kept = list(dumps)
    malformed = "entries that are no calls"
    cut = "it ends too early: its newest calls are unknown"
    return [
        *(Quality("malformed_entries", d.path, d.malformed, malformed) for d in kept if d.malformed),
        *(Quality("truncated_file", d.path, 1, cut, d.entries) for d in kept if d.truncated),
    ]


# Full rings, found from all dumps of a job: all its ranks record with rings of one size.


def forget_cuts(dumps: Collection[RankDump]) -> None:
    """Mark as uncut, in place, the dumps with rings that are not full: they have overwritten nothing outstanding.

    A dump of outstanding calls alone begins with one, too, as does a full ring; but their lengths differ by rank, while
    full rings are as long as the longest. What precedes the oldest call of a group in such a dump has been done.
    """
    size = max((_length(dump) for dump in dumps), default=0)
    cut = [dump for dump in dumps if dump.cut]
    full = [dump for dump in cut if _length(dump) == size]
    for dump in cut:
        dump.cut = _length(dump) == size and 2 * len(full) > len(cut)
    for dump in dumps:
        if not (dump.finished or dump.cut or dump.malformed):
            for tail in dump.groups:
                tail.entry_seen_done |= tail.entry_enqueued >= 0


def _length(dump: RankDump) -> int:
    """Give the entries of a dump, damaged ones included."""
    return dump.entries + dump.malformed
