"""Flight-recorder dumps of a job on Gloo that analysers can read: one file per rank, refreshed every second.

torch records Gloo's collectives but writes nothing by itself, leaves sends and receives out, and leaves the
list of process groups empty (`torchfrtrace` then fails with a KeyError). Here a thread completes the dump and
writes it once a second, so that the last state is there after a crash or when the interpreter's lock is
never released. When a call has been pending for most of its timeout, the thread keeps the file as it is:
after the timeout's exception torch counts the stuck call as completed.

On NCCL torch records all of it; its dump is written as it is, once a second likewise, and at the timeout torch's own
watchdog writes once more, which needs no interpreter.

The recorder must be switched on before the process group exists: call `enable` first.
"""

import contextlib
import os
import pickle
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from reftrain.record.collectives import watch
from reftrain.record.flight_dump import complete, ended_well, oldest_pending_s, relative
from reftrain.record.groups import pg_config
from reftrain.record.last_calls import LastCalls, last_calls_of
from reftrain.record.p2p import P2PRing, install
from reftrain.thresholds import FLIGHT_ENTRIES, HANG_SHARE


def enable(folder: Path) -> None:
    """Switch torch's recorder on; to be called before the process group is made.

    On NCCL the watchdog's dump goes to `folder` too, and durations on the device are recorded.
    """
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(FLIGHT_ENTRIES))
    os.environ.setdefault("TORCH_NCCL_DUMP_ON_TIMEOUT", "1")
    os.environ.setdefault("TORCH_NCCL_ENABLE_TIMING", "1")
    prefix = f"{folder.absolute() / 'rank_'}"
    os.environ.setdefault("TORCH_FR_DUMP_TEMP_FILE", prefix)


class FlightRecorder:
    """Writes `folder`/rank_N every `every_s` seconds from `start` to `stop`.

    `timeout_s` is the process group's timeout.
    """

    def __init__(self, folder: Path, timeout_s: float, every_s: float = 1.0) -> None:
        self.path = folder / f"rank_{dist.get_rank()}"
        self.timeout_s = timeout_s
        self.every_s = every_s
        self._on_nccl = dist.get_backend() == "nccl"
        self.ring = P2PRing(FLIGHT_ENTRIES, self._note_p2p)
        self.last_calls: LastCalls | None = None
        self._before: dict[str, int] = {}  # newest collective by group name when the recording began
        self._noted: dict[str, int] = {}  # number of the newest collective's note by group name
        self._running: dict[int, tuple[int, Any]] = {}  # works of collectives by identity, with that number
        self._raised = False  # whether a call raised, which torch counts as completed
        self.error: OSError | None = None  # why the last dump could not be written
        self._installed = contextlib.ExitStack()
        self._ending = threading.Event()
        self._writing = threading.Lock()
        self._keep_until = 0.0
        self._thread = threading.Thread(target=self._watch, name="flight-recorder", daemon=True)

    def start(self) -> None:
        """Begin to record sends and receives and to write dumps. Raises OSError where the folder cannot be made.

        What was called before has ended: a job that sets itself up waits for each of its calls.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self._on_nccl:
            self.last_calls = LastCalls(last_calls_of(self.path))
            for entry in _native().get("entries", []):
                self._before[entry["process_group"][0]] = entry["collective_seq_id"]
            watching = watch(dict(self._before), self._note_collective, self._made, self._waited)
            self._installed.enter_context(watching)
            self._installed.enter_context(install(self.ring))
        self.write()
        self._thread.start()

    def finished(self, group: dist.ProcessGroup | None, peer: int | None = None, op: str = "") -> None:
        """Note the collectives that are complete, or that this rank's oldest message with `peer` is.

        `peer` is a global rank and `op` send or recv.
        """
        if peer is None:
            self._note_completed()
        elif self.last_calls is not None and group is not None:
            self.last_calls.done(group.group_name, f"{op} {dist.get_group_rank(group, peer)}", newest=False)

    def _note_completed(self) -> None:
        """Mark every collective that has ended well, also where no call waited for it."""
        if self.last_calls is None:
            return
        for key, (number, work) in list(self._running.items()):
            if work.is_completed():
                self._running.pop(key, None)
                if ended_well(work):
                    self.last_calls.mark(number)
                else:
                    self._raised = True

    def _waited(self, work: Any) -> None:
        number, _ = self._running.pop(id(work), (0, None))
        if number and self.last_calls is not None:
            self.last_calls.mark(number)

    def _note_collective(self, entry: dict[str, Any]) -> None:
        self._note_completed()
        self._raised = False  # the job goes on
        if self.last_calls is not None:
            number = self.last_calls.add({**entry, "frames": relative(entry["frames"])}, "")
            self._noted[entry["process_group"][0]] = number

    def _made(self, group: str, work: Any) -> None:
        number = self._noted.pop(group, 0)
        if number and work is not None:
            self._running[id(work)] = number, work

    def _note_p2p(self, entry: dict[str, Any]) -> None:
        self._note_completed()
        if self.last_calls is not None:
            direction, arrow = entry["profiling_name"].removeprefix("gloo:").split(" ")
            peer = arrow.replace("<-", "->").partition("->")[2]
            entry = {**entry, "frames": relative(entry["frames"]), "collective_seq_id": 0, "timeout_ms": 0}
            self.last_calls.add(entry, f"{direction} {peer}")

    def stop(self, *, failed: bool = False) -> None:
        """End the thread and write a last time, unless a hang is kept.

        After a failure nothing is written, because torch counts calls that raised as completed; the ring of the
        last calls stays beside the dump (see `last_calls.merge_last_calls`).
        """
        if self._thread.is_alive():
            self._ending.set()
            self._thread.join(timeout=10.0)
        self._installed.close()
        if failed or time.monotonic() < self._keep_until:
            return
        self._refresh()
        if self.last_calls is not None:
            self.last_calls.close()

    def write(self) -> None:
        """Write the dump now; the file appears whole or not at all. Raises OSError."""
        with self._writing:
            self._put(self._dump())

    def state(self) -> dict[str, Any]:
        """Return the dump of this moment."""
        self._note_completed()
        return self._dump()

    def _dump(self) -> dict[str, Any]:
        if self._on_nccl:
            return nccl_dump()
        return complete(_native(), self.ring.entries(), pg_config(), self._before)

    def _put(self, dump: dict[str, Any]) -> None:
        temporary = self.path.with_name(f".{self.path.name}.tmp")
        temporary.write_bytes(pickle.dumps(dump))
        temporary.replace(self.path)

    def _watch(self) -> None:
        while not self._ending.wait(self.every_s):
            self._refresh()

    def _refresh(self) -> None:
        """Note a heartbeat, and write, unless a call raised, or the file holds a hang that may have timed out since."""
        if self.last_calls is not None:
            self.last_calls.beat(time.time_ns())
        if time.monotonic() < self._keep_until:
            return
        self._note_completed()
        with self._writing:
            dump = self._dump()
            self._note_completed()
            if self._raised:
                return
            pending_s = oldest_pending_s(dump["entries"], time.time_ns())
            if pending_s >= HANG_SHARE * self.timeout_s:
                # a job that recovers is recorded again when this call's timeout is surely over
                self._keep_until = time.monotonic() + self.timeout_s
            try:
                self._put(dump)
                self.error = None
            except OSError as error:
                self.error = error


def nccl_dump() -> dict[str, Any]:
    """Torch's own dump of NCCL's calls, with file names as Python imports them."""
    dumped = torch._C._distributed_c10d._dump_nccl_trace  # type: ignore[attr-defined]  # noqa: SLF001 - no public name
    found: dict[str, Any] = pickle.loads(dumped())  # noqa: S301 - written by this process a moment ago
    for entry in found.get("entries", []):
        entry["frames"] = relative(entry.get("frames", []))
    return found


def _native() -> dict[str, Any]:
    """Torch's own dump of this process; it is ours, so unpickling it is safe."""
    dumped = torch._C._distributed_c10d._dump_fr_trace  # type: ignore[attr-defined]  # noqa: SLF001 - no public name
    found: dict[str, Any] = pickle.loads(dumped())  # noqa: S301 - written by this process a moment ago
    return found
