"""Reads a folder of flight-recorder dumps: which file is which rank's, and what each rank did last.

Ranks come from what a dump says about itself, then from the groups it belongs to, then from its file's
name: files may be called anything. Decoding happens in bounded worker processes (`flight_pool`,
`unpickle`); what reaches this process are columns (`flight_entry`). Next stage: `analysis.hang`.
"""

import hashlib
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tracekit.dumps import unpickle
from tracekit.dumps.entries import Reducer
from tracekit.dumps.files import find_files, read_bytes, size_of
from tracekit.dumps.rank_dump import RankDump, without_end
from tracekit.dumps.salvage import salvage, salvage_json
from tracekit.dumps.timing import timed_calls
from tracekit.dumps.workers import decode_all
from tracekit.errors import InputError
from tracekit.findings import Quality, Rejected

_RANK_WORD = re.compile(r"rank[_\-=.]?(\d{1,8})", re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,8}")

Progress = Callable[[int, int, int, int], None]
"""Called with files done, files in all, bytes done, bytes in all."""


@dataclass(frozen=True)
class DumpSet:
    """Every dump that could be read, by rank, and what could not."""

    dumps: dict[int, RankDump]
    rejected: tuple[Rejected, ...]
    quality: tuple[Quality, ...]
    world: tuple[int, ...]  # ranks of the job, sorted: the greatest group, and every rank read


def load_dumps(
    inputs: Sequence[str],
    jobs: int = 1,
    progress: Progress | None = None,
    *,
    timed: bool = False,
) -> DumpSet:
    """Read the dumps that `inputs` (files, folders, globs, fsspec URLs) name, with `jobs` processes.

    timed: also keep when every call ran (`RankDump.timing`).
    progress: called with (files read, all files, bytes read, all bytes).
    Raises InputError where an input names nothing, or no file holds a dump.
    """
    paths, named = find_files(inputs)
    sizes = [size_of(p) for p in paths]
    results: list[Any] = [None] * len(paths)
    shared = _Shared()
    count, done_bytes, total = 0, 0, sum(sizes)
    for index, result in decode_all(paths, partial(_Handler, timed=timed), jobs):
        results[index] = shared.adopt(result)
        count, done_bytes = count + 1, done_bytes + sizes[index]
        if progress is not None:
            progress(count, len(paths), done_bytes, total)
    dumps = [r for r in results if isinstance(r, RankDump)]
    rejected: list[Rejected] = []
    quality: list[Quality] = []
    foreign = 0
    for path, result in zip(paths, results, strict=True):
        if isinstance(result, RankDump):
            continue
        if isinstance(result, NotADumpError) and path not in named:
            foreign += 1
        else:
            rejected.append(Rejected(path, str(result), _rank_in_name(path)))
    if foreign:
        quality.append(
            Quality("foreign_files", count=foreign, detail="files in the folders that hold no dump")
        )
    assigned, more, doubts = _assign(dumps)
    rejected.extend(more)
    if not assigned:
        why = f"; the first: {rejected[0].path}: {rejected[0].reason}" if rejected else ""
        raise InputError(f"{', '.join(inputs)}: no usable flight-recorder dump among {len(paths)} files{why}")
    quality.extend(doubts)
    what = "entries that are no calls"
    quality.extend(
        Quality("malformed_entries", d.path, d.malformed, what) for d in assigned.values() if d.malformed
    )
    cut = "it ends too early: its newest calls are unknown"
    quality.extend(
        Quality("truncated_file", d.path, 1, cut, d.entries) for d in assigned.values() if d.truncated
    )
    world = set(assigned)
    for ranks in {id(g.ranks): g.ranks for d in assigned.values() for g in d.groups}.values():
        world.update(ranks)
    return DumpSet(dict(sorted(assigned.items())), tuple(rejected), tuple(quality), tuple(sorted(world)))


class NotADumpError(InputError):
    """Decoded, but something else."""


class _Handler:
    """Runs in a worker: path → (reduced dump with numbered member lists, member lists not sent before)."""

    def __init__(self, *, timed: bool = False) -> None:
        self._timed = timed
        self._reducer = Reducer()
        self._sent: dict[int, int] = {}  # by identity: the reducer keeps one object for each list of members

    def __call__(self, path: str) -> Any:
        try:
            data = read_bytes(path)
            decoded, cut_off = _decode(data)
            digest, length = hashlib.sha256(data).hexdigest() if self._timed else "", len(data)
            del data
            if not isinstance(decoded, dict) or not ("entries" in decoded or "pg_status" in decoded):
                return NotADumpError("no flight-recorder dump: neither entries nor pg_status in it")
            dump = self._reducer.reduce(path, decoded)
            dump.sha256, dump.bytes = digest, length
            if cut_off:
                without_end(dump)
            if self._timed:
                dump.timing = timed_calls(dump, decoded.get("entries"))
        except MemoryError:
            raise
        except InputError as error:
            return InputError(str(error))
        except OSError as error:
            return InputError(f"cannot be read ({error.strerror or error})")
        except Exception as error:  # noqa: BLE001 (whatever a crafted file provokes, it alone is refused)
            return InputError(f"no usable dump ({type(error).__name__}: {str(error)[:120]})")
        fresh = []
        for group in dump.groups:
            number = self._sent.get(id(group.ranks))
            if number is None:
                number = self._sent[id(group.ranks)] = len(self._sent)
                fresh.append(group.ranks)
            group.ranks = (number,)
        return os.getpid(), fresh, dump


def _decode(data: bytes) -> tuple[Any, bool]:
    """Give the contents, and whether the file ends too early and these are only what stands before its end."""
    try:
        return unpickle.loads(data), False
    except unpickle.DamagedError:
        pickled = data[:1] == b"\x80"
        kept = salvage(data) if pickled else salvage_json(data)
        # a pickle without its groups says nothing; JSON lists them last, and calls name theirs
        told = kept is not None and (kept.get("pg_config") or not pickled)
        if kept is None or not told or not (kept.get("entries") or kept.get("pg_status")):
            raise
        return kept, True


class _Shared:
    """In the parent: one object for every member list and call, however many dumps repeat it."""

    def __init__(self) -> None:
        self._ranks: dict[int, list[tuple[int, ...]]] = {}
        self._one: dict[Any, Any] = {}

    def adopt(self, result: Any) -> Any:
        if not isinstance(result, tuple):
            return result
        worker, fresh, dump = result
        numbered = self._ranks.setdefault(worker, [])
        numbered.extend(self._one.setdefault(ranks, ranks) for ranks in fresh)
        for group in dump.groups:
            group.ranks = numbered[group.ranks[0]]
            group.calls = tuple([self._one.setdefault(c, c) for c in group.calls])
            group.desc = self._one.setdefault(group.desc, group.desc)
        dump.messages.names = tuple([self._one.setdefault(n, n) for n in dump.messages.names])
        dump.messages.calls = tuple([self._one.setdefault(c, c) for c in dump.messages.calls])
        for op in dump.p2p:
            op.call = self._one.setdefault(op.call, op.call)
        dump.stack = self._one.setdefault(dump.stack, dump.stack)
        return dump


def _rank_in_name(path: str, allowed: Sequence[int] | None = None) -> int | None:
    """Give the rank in a file's name: after the word rank, else the last number; among `allowed` if given."""
    name = path.rpartition("/")[2]
    numbers = [int(n) for n in (*_RANK_WORD.findall(name)[-1:], *reversed(_NUMBER.findall(name)))]
    if allowed is not None:
        numbers = [n for n in numbers if n in allowed]
    return numbers[0] if numbers else None


def _assign(dumps: list[RankDump]) -> tuple[dict[int, RankDump], list[Rejected], list[Quality]]:
    """Give every dump its rank. A dump whose rank cannot be told is rejected, never guessed."""
    assigned: dict[int, RankDump] = {}
    rejected: list[Rejected] = []
    quality: list[Quality] = []
    open_: list[RankDump] = []
    by_name: list[RankDump] = []

    def take(dump: RankDump, rank: int) -> None:
        if rank in assigned:
            reason = f"second dump of rank {rank} (the first: {assigned[rank].path}); keep one of them"
            rejected.append(Rejected(dump.path, reason, rank))
            return
        dump.rank = rank
        assigned[rank] = dump

    for dump in dumps:
        if dump.claimed is not None and 0 <= dump.claimed < 1 << 24:
            take(dump, dump.claimed)
        elif dump.candidates is not None and len(dump.candidates) == 1:
            take(dump, dump.candidates[0])
        elif _rank_in_name(dump.path, dump.candidates) is not None:
            by_name.append(dump)
        else:
            open_.append(dump)
    names = Counter(_rank_in_name(d.path, d.candidates) for d in by_name)
    for dump in by_name:
        rank = _rank_in_name(dump.path, dump.candidates)
        if rank is not None and names[rank] == 1 and rank not in assigned:
            take(dump, rank)
        else:
            open_.append(dump)
    for dump in open_:
        left = [r for r in dump.candidates or () if r not in assigned]
        if len(left) == 1:
            take(dump, left[0])
            continue
        reason = "neither its groups nor its name tell which rank wrote it; put the rank into the file's name"
        rejected.append(Rejected(dump.path, reason, None))
    renamed = [
        d
        for d in assigned.values()
        if (told := _rank_in_name(d.path)) is not None and told != d.rank and d.claimed is None
    ]
    if renamed:
        detail = "the rank in the file's name is not the one its groups tell; the groups were believed"
        quality.append(Quality("renamed_files", renamed[0].path, len(renamed), detail))
    return assigned, rejected, quality
