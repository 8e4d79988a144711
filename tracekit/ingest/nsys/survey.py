"""First look at a database: its processes with kernels, their NCCL calls, communicators and ranges that may be steps.

Nothing is written yet: which rank a process is, and the members of a communicator, follow from all files together.
"""

import re
from array import array
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from tracekit.ingest.nsys.database import KERNELS, Database, UnusableDatabaseError, number
from tracekit.ingest.nsys.payloads import CALLS, STARTS, Payload, Schemas
from tracekit.text import plain
from tracekit.thresholds.ingest import LONGEST_NS, MAX_RANKS, MAX_TIME_NS
from tracekit.thresholds.nsys import MAX_CALLS, MAX_RANGES, MAX_TABLES

NVTX: Final = "NVTX_EVENTS"
NVTX_COLUMNS: Final = ("start", "end", "globalTid", "text", "textId", "domainId", "binaryData")
THREAD: Final = (1 << 24) - 1
"""The lowest 24 bits of a global thread are its number, the next 24 those of its process."""
OPERATOR: Final = re.compile(r", (?:seq|op_id|sizes|input_op_ids) = ")
"""What torch's `emit_nvtx` puts behind the name of an operator."""
_NO_STEP: Final = re.compile(rf"^nccl|{OPERATOR.pattern}")
NCCL_KERNEL: Final = re.compile(r"^(?:void )?(?:nccl|rccl)\w*(?:Kernel|Dev)", re.IGNORECASE)
_RANKS: Final = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLDS: Final = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
_FARTHEST: Final = MAX_TIME_NS // 2
"""A time in a database, ns: beside the time of its zero it stays within the bounds of all times."""
NO_KERNELS: Final = "it holds no CUDA kernels; record with `nsys profile --trace=cuda,nvtx`"


@dataclass(frozen=True, slots=True)
class NcclCall:
    """One call on the host. id: 1 for the first of its process. communicator: 0 where it is unknown."""

    id: int
    kind: str
    thread: int
    start: int
    end: int
    communicator: int
    bytes: int
    peer: int


@dataclass
class Process:
    """One process of a database. places: by communicator its place and the size; 0 is one without a number."""

    path: str
    number: int
    host: str | None = None
    devices: set[int] = field(default_factory=set)
    kernels: int = 0
    talking: "array[int]" = field(default_factory=lambda: array("q"))
    calls: list[NcclCall] = field(default_factory=list)
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    ranges: dict[tuple[int, str], list[tuple[int, int]]] = field(default_factory=lambda: defaultdict(list))
    kept_ranges: int = 0
    own_rank: int | None = None
    own_world: int | None = None

    @property
    def pid(self) -> int:
        """The number of the process on its host."""
        return self.number >> 24 & THREAD

    @property
    def users(self) -> set[int]:
        """The numbers of the communicators that it uses."""
        return {call.communicator for call in self.calls} | set(self.places) - {0}


@dataclass
class Survey:
    """What a first look at a database shows. base: time of its zero, ns since 1970. graphs: graphs as a whole."""

    processes: dict[int, Process]
    base: int
    graphs: int


def survey(base: Database, path: str) -> Survey:
    """Look through a database; UnusableDatabaseError where it holds no kernels."""
    if not base.exported:
        raise UnusableDatabaseError("it is a database of another program, not one that nsys exported")
    processes: dict[int, Process] = {}
    talks: dict[object, bool] = {}
    name = name_column(base)
    for chunk in base.rows(KERNELS, ("globalPid", "deviceId", "correlationId", name)):
        for owner, device, correlation, title in chunk:
            key = process_of(owner)
            process = processes.get(key) or processes.setdefault(key, Process(path, key))
            process.kernels += 1
            process.devices.add(number(device))
            if title not in talks:
                talks[title] = is_nccl(base.name(title))
            if talks[title]:
                process.talking.append(number(correlation))
    if not processes:
        raise UnusableDatabaseError(NO_KERNELS)
    _take_ranges(base, processes)
    host, rank, world = _environment(base)
    for process in processes.values():
        process.host = host
        if len(processes) == 1:
            process.own_rank, process.own_world = rank, world
    graphs = sum(len(chunk) for chunk in base.rows("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", ("start",)))
    return Survey(processes, _base_time(base), graphs)


def name_column(base: Database) -> str:
    """Return the column of a kernel's name that this version of nsys writes."""
    return next((c for c in ("demangledName", "shortName", "name") if base.has(KERNELS, c)), "demangledName")


def process_of(value: object) -> int:
    """Return the global process of a global process or thread; 0 where the column is missing."""
    return value & ~THREAD if type(value) is int else 0


def is_nccl(name: str) -> bool:
    """Return whether a kernel is one of NCCL's or RCCL's."""
    return NCCL_KERNEL.match(name) is not None


def span(start: object, end: object) -> tuple[int, int] | None:
    """Return begin and end of an event, ns; None where they cannot be true."""
    if type(start) is not int or type(end) is not int or not -_FARTHEST < start <= end < _FARTHEST:
        return None
    return start, min(end, start + LONGEST_NS)


def _take_ranges(base: Database, processes: dict[int, Process]) -> None:
    """Give each process its NCCL calls, its places in communicators, and the other ranges of its host."""
    schemas = Schemas(base)
    only = next(iter(processes.values())) if len(processes) == 1 else None
    for chunk in base.rows(NVTX, NVTX_COLUMNS):
        for start, end, thread, text, text_id, domain, block in chunk:
            process = processes.get(process_of(thread), only if type(thread) is not int else None)
            if process is None or (when := span(start, end)) is None:
                continue
            title = base.name(text if text is not None else text_id)
            if title in CALLS or title in STARTS:
                payload = schemas.payload(block, number(domain))
                _take_call(process, title, (number(thread), *when), payload)
            elif title and process.kept_ranges < MAX_RANGES and not _NO_STEP.search(title):
                process.kept_ranges += 1
                process.ranges[number(thread), title].append(when)


def _take_call(process: Process, title: str, when: tuple[int, int, int], payload: Payload) -> None:
    if title in STARTS:
        if 0 <= payload.place < payload.size:
            process.places[payload.communicator] = (payload.place, payload.size)
        return
    if len(process.calls) >= MAX_CALLS:
        raise UnusableDatabaseError(
            f"one process has more than {MAX_CALLS} NCCL calls; record fewer steps (--capture-range=cudaProfilerApi)"
        )
    thread, start, end = when
    process.calls.append(
        NcclCall(
            len(process.calls) + 1,
            CALLS[title],
            thread,
            start,
            end,
            payload.communicator,
            payload.bytes,
            payload.peer,
        )
    )


def _environment(base: Database) -> tuple[str | None, int | None, int | None]:
    """Return host, rank and world size by the environment in which nsys started the program."""
    host, rank, world = None, None, None
    seen = 0
    for chunk in base.rows("TARGET_INFO_SYSTEM_ENV", ("name", "value")):
        for name, value in chunk:
            seen += 1
            if seen > MAX_TABLES or not isinstance(name, str) or not isinstance(value, str):
                continue
            if name == "Hostname" and value:
                host = plain(value[:200])
            elif name == "DeviceEnvironment":
                rank, world = _variable(value, _RANKS), _variable(value, _WORLDS)
    return host, rank, world


def _variable(text: str, names: tuple[str, ...]) -> int | None:
    """Return the value of the first variable that is set to a rank or a number of ranks."""
    for name in names:
        found = re.search(rf"(?<![A-Za-z0-9_]){name}[\"']?\s?[=:]\s?[\"']?(\d{{1,6}})(?![\w.])", text)
        if found and int(found[1]) <= MAX_RANKS:
            return int(found[1])
    return None


def _base_time(base: Database) -> int:
    for chunk in base.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",)):
        for (zero,) in chunk:
            if 0 <= number(zero) < _FARTHEST:
                return number(zero)
    return 0
