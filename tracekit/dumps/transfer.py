"""How reduced dumps travel from worker processes: lists that repeat from dump to dump are sent once and kept once.

`DumpReader` runs in a worker, `Interner` in the parent. A job's dumps repeat the same lists of members (up to all
ranks) and the same few signatures thousands of times.
"""

import hashlib
import os
from dataclasses import dataclass
from typing import Any

from tracekit.dumps import unpickle
from tracekit.dumps.entries import Reducer
from tracekit.dumps.files import read_bytes
from tracekit.dumps.rank_dump import RankDump, without_end
from tracekit.dumps.timing import timed_calls
from tracekit.dumps.unpickle import is_bare, salvage, salvage_json, with_groups
from tracekit.errors import InputError


class NotADumpError(InputError):
    """The file could be decoded, but it holds something else."""


@dataclass(slots=True)
class Parcel:
    """One reduced dump on its way: in place of members its groups hold the number of a list (`ranks` is (number,))."""

    worker: int  # process id
    fresh: list[tuple[int, ...]]  # lists of members that this worker has not sent before, by number
    dump: RankDump


class DumpReader:
    """Reads, decodes and reduces one file after the other, in a worker process."""

    def __init__(self, *, timed: bool = False) -> None:
        self._timed = timed
        self._reducer = Reducer()
        self._sent: dict[int, int] = {}  # by identity: the reducer keeps one object for each list of members

    def __call__(self, path: str) -> Parcel | InputError:
        """Give the dump in a file, or the reason why there is none; MemoryError is the worker's to handle."""
        try:
            dump = self._read(path)
        except MemoryError:
            raise
        except NotADumpError as error:
            return error
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
        return Parcel(os.getpid(), fresh, dump)

    def _read(self, path: str) -> RankDump:
        """Give the reduced dump. Raises NotADumpError, InputError, or any error that a crafted file provokes."""
        data = read_bytes(path)
        decoded, cut_off = _decode(data)
        decoded = with_groups(decoded) if is_bare(decoded) else decoded
        digest, length = hashlib.sha256(data).hexdigest(), len(data)
        del data
        if isinstance(decoded, dict) and "traceEvents" in decoded:
            raise NotADumpError("it is a profiler's trace; `tracekit slowrank` reads it")
        if not isinstance(decoded, dict) or not ("entries" in decoded or "pg_status" in decoded):
            raise NotADumpError("not a flight-recorder dump: it has neither entries nor pg_status")
        dump = self._reducer.reduce(path, decoded, cut_off=cut_off)
        dump.sha256, dump.bytes = digest, length
        if cut_off:
            without_end(dump)
        if self._timed:
            dump.timing = timed_calls(dump, decoded.get("entries"))
        return dump


def _decode(data: bytes) -> tuple[Any, bool]:
    """Give the contents, and whether the file is cut off, so that only the part before the cut is given."""
    try:
        return unpickle.loads(data), False
    except unpickle.DamagedError:
        pickled = data[:1] == b"\x80"
        kept = salvage(data) if pickled else salvage_json(data)
        # a pickle without its groups says nothing; JSON lists them last, and calls name theirs
        grouped = kept is not None and (kept.get("pg_config") or not pickled)
        if kept is None or not grouped or not (kept.get("entries") or kept.get("pg_status")):
            raise
        return kept, True


class Interner:
    """Keeps, in the parent, one object for every list of members and every call, however many dumps repeat it."""

    def __init__(self) -> None:
        self._ranks: dict[int, list[tuple[int, ...]]] = {}  # by worker
        self._one: dict[Any, Any] = {}

    def adopt(self, result: Parcel | Exception) -> RankDump | Exception:
        """Give the dump of a parcel with its members put back; an exception as it is."""
        if isinstance(result, Exception):
            return result
        dump, one = result.dump, self._one
        numbered = self._ranks.setdefault(result.worker, [])
        numbered.extend(one.setdefault(ranks, ranks) for ranks in result.fresh)
        for group in dump.groups:
            group.ranks = numbered[group.ranks[0]]
            group.calls = tuple([one.setdefault(c, c) for c in group.calls])
            kept = {at: one.setdefault(s, s) for at, s in {id(s): s for s in group.stacks}.items()}
            group.stacks = tuple([kept[id(s)] for s in group.stacks])
            group.desc = one.setdefault(group.desc, group.desc)
        dump.messages.names = tuple([one.setdefault(n, n) for n in dump.messages.names])
        dump.messages.calls = tuple([one.setdefault(c, c) for c in dump.messages.calls])
        for op in (*dump.p2p, *dump.aborted):
            op.call, op.stack = one.setdefault(op.call, op.call), one.setdefault(op.stack, op.stack)
        dump.stack = one.setdefault(dump.stack, dump.stack)
        return dump
