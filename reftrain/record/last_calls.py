"""The last calls of a rank in a memory-mapped file, which survives a process that is killed at once.

A dump a second cannot hold what happened after it when the process is killed, aborted by a C++ library, or
when a call keeps the interpreter's lock. Each call is therefore also noted in a small ring in a mapped file,
which outlives the process whatever ends it; `merge_last_calls` completes the dumps with it afterwards.

The file ends in the rank's last heartbeat: the time at which its recorder last ran. A rank that is frozen (SIGSTOP, a
stopped container) made its last call like its peers, and only its heartbeat is older than theirs.

    python -m reftrain.record.last_calls run/fr

does so by hand, where no launcher of ours watched the ranks.
"""

import contextlib
import json
import mmap
import os
import pickle
import struct
import sys
import zlib
from collections import deque
from pathlib import Path
from typing import Any, Final

from tracekit.plain_pickle import loads_plain

SLOTS: Final = 128
SLOT_BYTES: Final = 4096
_HEAD: Final = struct.Struct("<QIIB")  # number of the call from 1, length and checksum of the text, done
_BEAT: Final = struct.Struct("<Q")  # ns since the epoch, after the slots


class LastCalls:
    """Ring of the last calls of this rank in the file `path`. Raises OSError where that cannot be made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w+b") as file:
            size = SLOTS * SLOT_BYTES + _BEAT.size
            file.truncate(size)
            self._map = mmap.mmap(file.fileno(), size)
        self._count = 0
        self._open: dict[tuple[str, str], deque[int]] = {}

    def add(self, entry: dict[str, Any], kind: str) -> int:
        """Note a call that is about to be made and return the note's number; `done` finds the call by `kind`.

        Returns 0 where the call is too long for a slot and is not noted.
        """
        text = json.dumps(entry, separators=(",", ":")).encode()
        if len(text) > SLOT_BYTES - _HEAD.size:
            text = json.dumps({**entry, "frames": []}, separators=(",", ":")).encode()
        if len(text) > SLOT_BYTES - _HEAD.size:
            return 0
        self._count += 1
        start = self._count % SLOTS * SLOT_BYTES
        _HEAD.pack_into(self._map, start, 0, 0, 0, 0)  # while it is written the slot holds nothing
        self._map[start + _HEAD.size : start + _HEAD.size + len(text)] = text
        _HEAD.pack_into(self._map, start, self._count, len(text), zlib.crc32(text), 0)
        if kind:
            self._open.setdefault((entry["process_group"][0], kind), deque(maxlen=SLOTS)).append(self._count)
        return self._count

    def done(self, group: str, kind: str, *, newest: bool) -> None:
        """Note that the newest (or oldest) open call of `kind` in `group` is complete; none open is no error."""
        numbers = self._open.get((group, kind))
        if numbers:
            self.mark(numbers.pop() if newest else numbers.popleft())

    def mark(self, number: int) -> None:
        """Note that the call noted under this number is complete; one no longer in the ring is no error."""
        start = number % SLOTS * SLOT_BYTES
        if _HEAD.unpack_from(self._map, start)[0] == number:
            self._map[start + _HEAD.size - 1] = 1

    def beat(self, now_ns: int) -> None:
        """Note that this rank runs, at `now_ns` since the epoch."""
        _BEAT.pack_into(self._map, SLOTS * SLOT_BYTES, now_ns)

    def close(self) -> None:
        """Remove the file: the dump holds all calls."""
        self._map.close()
        self.path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # another rank's is still there
            self.path.parent.rmdir()


def last_calls_of(dump: Path) -> Path:
    """Return the path of a dump's ring: beside the folder of dumps, because other tools read that folder whole."""
    return dump.parent.with_name(f".{dump.parent.name}-tails") / dump.name


def read_tail(path: Path) -> list[dict[str, Any]]:
    """Calls in a ring, oldest first, `retired` saying which are complete; what is torn is left out."""
    raw = path.read_bytes()
    calls = []
    for start in range(0, len(raw) - SLOT_BYTES + 1, SLOT_BYTES):
        number, length, checksum, done = _HEAD.unpack_from(raw, start)
        text = raw[start + _HEAD.size : start + SLOT_BYTES][:length]
        if number and zlib.crc32(text) == checksum:
            call = json.loads(text)
            call["process_group"] = tuple(call["process_group"])
            call["state"], call["retired"] = ("completed", True) if done else ("scheduled", False)
            calls.append((number, call))
    return [call for _, call in sorted(calls, key=lambda pair: pair[0])]


def last_heartbeat(path: Path) -> int:
    """Return the last heartbeat in a ring, ns since the epoch; 0 where there was none."""
    tail = path.read_bytes()[SLOTS * SLOT_BYTES :]
    return int(_BEAT.unpack(tail)[0]) if len(tail) == _BEAT.size else 0


def merge_last_calls(folder: Path) -> None:
    """Complete every dump in `folder` with its ring and its rank's last heartbeat, and remove the rings.

    The heartbeat becomes `heartbeat_ns` of the dump and the time of its file, which other tools see.
    Raises OSError, and RefusedError where a dump asks for code.
    """
    rings = last_calls_of(folder / "rank_0").parent
    for path in sorted(rings.glob("rank_*")):
        dump = folder / path.name
        if dump.exists():
            merged = with_tail(loads_plain(dump.read_bytes()), read_tail(path))
            temporary = dump.with_name(f".{dump.name}.tmp")
            beat = last_heartbeat(path)
            temporary.write_bytes(pickle.dumps({**merged, "heartbeat_ns": beat} if beat else merged))
            if beat:
                os.utime(temporary, ns=(beat, beat))
            temporary.replace(dump)
        path.unlink()
    if rings.exists():
        rings.rmdir()


def with_tail(dump: dict[str, Any], calls: list[dict[str, Any]]) -> dict[str, Any]:
    """`dump` with the calls made, and those completed, since it was written; its other parts are kept."""
    entries = list(dump["entries"])
    place = {_key(entry): i for i, entry in enumerate(entries)}
    newest: dict[tuple[str, bool], int] = {}
    for group, p2p, number in place:
        newest[group, p2p] = max(newest.get((group, p2p), 0), number)
    ids = {entry["process_group"][0]: entry["pg_id"] for entry in entries}
    for name in dump["pg_config"]:
        ids.setdefault(name, len(ids) + 2_000)
    for call in calls:
        group, p2p, number = _key(call)
        if _key(call) in place:
            if call["retired"]:
                at = place[_key(call)]
                entries[at] = {**entries[at], "state": "completed", "retired": True}
        elif number > newest.get((group, p2p), 0):
            entries.append({**call, "pg_id": ids.setdefault(group, len(ids) + 2_000)})
    entries.sort(key=lambda entry: entry["time_created_ns"])
    entries = [{**entry, "record_id": i} for i, entry in enumerate(entries)]
    return {**dump, "entries": entries, "pg_status": status(dump["pg_status"], entries)}


def status(native: dict[str, dict[str, int]], entries: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Last enqueued and completed collective of each group, from a dump's status and from its entries."""
    found = {key: dict(row) for key, row in native.items()}
    for entry in entries:
        if entry["is_p2p"]:
            continue
        row = found.setdefault(
            str(entry["pg_id"]),
            {"last_enqueued_collective": -1, "last_started_collective": -1, "last_completed_collective": -1},
        )
        seq = entry["collective_seq_id"]
        row["last_enqueued_collective"] = max(row["last_enqueued_collective"], seq)
        if entry["retired"]:
            row["last_completed_collective"] = max(row["last_completed_collective"], seq)
    return found


def _key(entry: dict[str, Any]) -> tuple[str, bool, int]:
    number = entry["p2p_seq_id"] if entry["is_p2p"] else entry["collective_seq_id"]
    return entry["process_group"][0], entry["is_p2p"], number


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python -m reftrain.record.last_calls RUN/fr")
    merge_last_calls(Path(sys.argv[1]))
