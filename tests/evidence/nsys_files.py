"""Kineto traces of simulated jobs as the SQLite files that `nsys export` would write of the same processes.

Written from the schema reference of Nsight Systems and NCCL's payload structures, by the author of the reader, so
that both may share a misreading: no file of nsys itself was at hand. What Kineto says of a call in arguments is here
in NCCL's own ranges only: communicator, bytes, the peer's place.
"""

import gzip
import hashlib
import json
import sqlite3
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"
ZERO = 1_771_588_800_000_000_000
DOMAIN = 3
STATIC = 1 << 24
INIT, SIZED, PEERED = STATIC + 11, STATIC + 5, STATIC + 9
INT, UINT64, SIZE = 5, 18, 22
BYTES = {"BFloat16": 2, "Float": 4, "Half": 2, "Int": 4, "Long": 8, "Byte": 1}
NAMES = {
    "allreduce": "ncclAllReduce",
    "all_reduce": "ncclAllReduce",
    "_allgather_base": "ncclAllGather",
    "_all_gather_base": "ncclAllGather",
    "_reduce_scatter_base": "ncclReduceScatter",
    "broadcast": "ncclBroadcast",
    "send": "ncclSend",
    "recv": "ncclRecv",
}
SCHEMAS = {
    INIT: (
        (UINT64, "NCCL communicator ID", 0),
        (INT, "No. of ranks", 8),
        (INT, "Rank", 12),
        (INT, "CUDA device", 16),
    ),
    SIZED: ((UINT64, "NCCL communicator ID", 0), (SIZE, "Message size [bytes]", 8)),
    PEERED: ((UINT64, "NCCL communicator ID", 0), (SIZE, "Message size [bytes]", 8), (INT, "Peer rank", 16)),
}


@dataclass(frozen=True)
class Form:
    """What a version of nsys and NCCL, and the command line, leave of a process.

    year: 2022 writes no payload schemas and no demangled names but short ones. inits: whether the start of NCCL was
    captured. blobs: `--include-blobs`. nccl: whether NCCL's ranges were recorded. steps: name of the range of a step.
    env: whether nsys was started for each rank. operators: `emit_nvtx`. grouped: collectives between ncclGroupStart and
    ncclGroupEnd, which launches them.
    """

    year: int = 2025
    inits: bool = True
    blobs: bool = True
    nccl: bool = True
    steps: str = "step {}"
    env: bool = False
    operators: bool = False
    grouped: bool = False


FORMS = {
    "2025": Form(),
    "2025 env": Form(inits=False, env=True),
    "2025 captured range": Form(inits=False),
    "2025 unnumbered step": Form(steps="train_step"),
    "2025 emit_nvtx": Form(steps="ProfilerStep#{}", operators=True),
    "2025 grouped": Form(grouped=True),
    "2024 no steps": Form(2024, steps=""),
    "2023 no blobs": Form(2023, blobs=False),
    "2022": Form(2022, blobs=False, nccl=False),
}
"""Every form that a test reads, by name."""


class _Writer:
    """One database."""

    def __init__(self, path: Path, form: Form) -> None:
        path.unlink(missing_ok=True)
        self.base, self.form = sqlite3.connect(path), form
        self.names: dict[str, int] = {}
        name = "shortName INT" if form.year < 2023 else "demangledName INT, shortName INT, mangledName INT"
        self.base.executescript(f"""
            CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
            CREATE TABLE {KERNEL} (start INT NOT NULL, end INT NOT NULL, deviceId INT, contextId INT, streamId INT,
                correlationId INT, globalPid INT, {name}, gridX INT, gridY INT, gridZ INT, graphNodeId INT);
            CREATE TABLE {RUNTIME} (start INT NOT NULL, end INT NOT NULL, eventClass INT, globalTid INT,
                correlationId INT, nameId INT, returnValue INT);
            CREATE TABLE NVTX_EVENTS (start INT NOT NULL, end INT, eventType INT, rangeId INT, category INT, color INT,
                text TEXT, globalTid INT, endGlobalTid INT, textId INT, domainId INT, jsonText TEXT
                {", binaryData BLOB" if form.blobs else ""});
            CREATE TABLE TARGET_INFO_SYSTEM_ENV (globalVid INT, devStateName TEXT, name TEXT, nameEnum INT, value TEXT);
            CREATE TABLE TARGET_INFO_SESSION_START_TIME (utcEpochNs INT, utcTime TEXT, localTime TEXT);
        """)
        self.base.execute("INSERT INTO TARGET_INFO_SESSION_START_TIME VALUES (?, '', '')", (ZERO,))
        if form.blobs:
            self.base.execute(
                "CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INT, schemaId INT, idx INT, flags INT, type INT, "
                "name TEXT, description TEXT, arrayOrUnionDetail INT, offset INT)"
            )
            for schema, fields in SCHEMAS.items():
                for at, (kind, title, offset) in enumerate(fields):
                    row = (DOMAIN, schema, at, None, kind, title, None, None, offset or None)
                    self.base.execute(
                        f"INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES ({','.join('?' * 9)})", row
                    )

    def name(self, text: str) -> int:
        return self.names.setdefault(text, len(self.names) + 1)

    def range(
        self, start: int, end: int, thread: int, text: str, domain: int = 0, blob: bytes | None = None
    ) -> None:
        columns = "start, end, eventType, globalTid, textId, domainId"
        row: list[Any] = [start, end, 59, thread, self.name(text), domain]
        if self.form.blobs:
            columns, row = columns + ", binaryData", [*row, blob]
        self.base.execute(f"INSERT INTO NVTX_EVENTS ({columns}) VALUES ({','.join('?' * len(row))})", row)

    def call(self, start: int, end: int, thread: int, text: str, schema: int, payload: bytes) -> None:
        head = struct.pack("<IIIIQQ", DOMAIN, 0, schema, 0, len(payload), 32 + len(payload))
        self.range(start, end, thread, text, DOMAIN, head + payload)

    def kernel(self, event: Mapping[str, Any], owner: int) -> None:
        start, end, args = _begin(event), _end(event), event["args"]
        names = [self.name(event["name"])] * (1 if self.form.year < 2023 else 3)
        row = [
            start,
            end,
            args["device"],
            1,
            args["stream"],
            args["correlation"],
            owner,
            *names,
            *args["grid"],
            None,
        ]
        self.base.execute(f"INSERT INTO {KERNEL} VALUES ({','.join('?' * len(row))})", row)

    def runtime(self, start: int, end: int, thread: int, correlation: int, name: str) -> None:
        row = (start, end, 0, thread, correlation, self.name(f"{name}_v7000"), 0)
        self.base.execute(f"INSERT INTO {RUNTIME} VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def close(self, host: str, environment: str) -> None:
        rows = [(0, "", "Hostname", 1, host), (0, "", "DeviceEnvironment", 2, environment)]
        self.base.executemany("INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES (?, ?, ?, ?, ?)", rows)
        self.base.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(n, text) for text, n in self.names.items()]
        )
        self.base.commit()
        self.base.close()


def _begin(event: Mapping[str, Any]) -> int:
    return round(event["ts"] * 1000)


def _end(event: Mapping[str, Any]) -> int:
    return round((event["ts"] + event["dur"]) * 1000)


def _hash(ranks: Sequence[int]) -> int:
    return int.from_bytes(hashlib.sha256(repr(list(ranks)).encode()).digest()[:8], "little") | 1


def documents(folder: Path) -> dict[int, dict[str, Any]]:
    """The Kineto traces in a folder, by rank."""
    found = [json.loads(gzip.decompress(path.read_bytes())) for path in sorted(folder.glob("*.json.gz"))]
    return {document["distributedInfo"]["rank"]: document for document in found}


def _process(writer: _Writer, document: Mapping[str, Any], form: Form) -> None:
    """Put one rank into a database."""
    info = document["distributedInfo"]
    rank = info["rank"]
    events = [e for e in document["traceEvents"] if e["ph"] == "X"]
    owner = (1 << 56) | ((5000 + rank) << 24)
    thread = owner | (5000 + rank)
    first = min(_begin(e) for e in events)
    if form.inits and form.nccl:
        for at, group in enumerate(info["pg_config"]):
            members = sorted(group["ranks"])
            payload = struct.pack("<Qiii4x", _hash(members), len(members), members.index(rank), 0)
            begin = first - 10_000_000 + at * 1000
            writer.call(begin, begin + 500, thread, "ncclCommInitRankConfig", INIT, payload)
    launches = {e["args"]["correlation"]: e for e in events if e["cat"] == "cuda_runtime"}
    for event in events:
        if event["cat"] == "kernel":
            writer.kernel(event, owner)
            if form.nccl and "Collective name" in event["args"]:
                _call(writer, event["args"], launches[event["args"]["correlation"]], thread, rank)
        elif event["cat"] == "cuda_runtime":
            writer.runtime(_begin(event), _end(event), thread, event["args"]["correlation"], event["name"])
        elif event["name"].startswith("ProfilerStep#"):
            if form.steps:
                writer.range(
                    _begin(event), _end(event), thread, form.steps.format(event["name"].split("#")[1])
                )
        elif event["cat"] == "user_annotation" and "DataLoader" in event["name"]:
            writer.range(_begin(event), _end(event), thread, event["name"])
        elif form.operators and event["cat"] == "cpu_op" and event["name"] != "record_param_comms":
            writer.range(_begin(event), _end(event), thread, f"{event['name']}, seq = 1, op_id = 7")


def _call(
    writer: _Writer, args: Mapping[str, Any], launch: Mapping[str, Any], thread: int, rank: int
) -> None:
    """Write NCCL's range of one call, around its launch or before it."""
    members = json.loads(args["Process Group Ranks"])
    kind = args["Collective name"]
    share = args["Out msg nelems"] if kind == "_reduce_scatter_base" else args["In msg nelems"]
    payload = struct.pack("<QQ", _hash(sorted(members)), share * BYTES[args["dtype"]])
    peer = args.get("Dst Rank", args.get("Src Rank"))
    begin, end = _begin(launch) - 500, _end(launch) + 500
    if writer.form.grouped and kind not in ("send", "recv"):
        writer.range(begin - 400, begin - 350, thread, "ncclGroupStart", DOMAIN)
        writer.range(begin, end, thread, "ncclGroupEnd", DOMAIN)
        begin, end = begin - 300, begin - 100
    schema = PEERED if kind in ("send", "recv") else SIZED
    payload += struct.pack("<i4x", sorted(members).index(peer)) if schema == PEERED else b""
    writer.call(begin, end, thread, NAMES[kind], schema, payload)


def write_nsys(
    made: Mapping[int, Mapping[str, Any]],
    out: Path,
    form: str | Form = "2025",
    *,
    name: str = "rank{}.sqlite",
    shared: int = 1,
    shuffle: int | None = None,
) -> Path:
    """Write the files of a job. name: of the file of each `shared` ranks; shuffle: seed of their order."""
    form = FORMS[form] if isinstance(form, str) else form
    out.mkdir(parents=True, exist_ok=True)
    ranks = sorted(made)
    groups = [ranks[at : at + shared] for at in range(0, len(ranks), shared)]
    if shuffle is not None:
        Random(shuffle).shuffle(groups)
    for at, group in enumerate(groups):
        writer = _Writer(out / name.format(group[0] if shuffle is None else at), form)
        for rank in group:
            _process(writer, made[rank], form)
        world = made[group[0]]["distributedInfo"]["world_size"]
        told = (
            f"PATH=/usr/bin\nLOCAL_RANK=0\nRANK={group[0]}\nWORLD_SIZE={world}\nLANG=C"
            if form.env
            else "PATH=/usr/bin"
        )
        writer.close(made[group[0]].get("host_name", "node"), told)
    return out


def tiny(
    folder: Path,
    name: str = "rank0.sqlite",
    *,
    kernels: int = 3,
    calls: int = 0,
    place: tuple[int, int] | None = None,
    environment: str = "",
    extra: str = "",
) -> Path:
    """Write a database of one process with a few kernels, and return its folder.

    place: of the process in its communicator, and the size. extra: SQL that is run at the start.
    """
    folder.mkdir(parents=True, exist_ok=True)
    writer = _Writer(folder / name, Form())
    writer.base.executescript(extra)
    for n in range(kernels):
        args = {"device": 0, "stream": 7, "correlation": n, "grid": [1, 1, 1]}
        writer.kernel({"name": "gemm", "ts": n, "dur": 0.5, "args": args}, 1 << 24)
    if place is not None:
        payload = struct.pack("<Qiii4x", 77, place[1], place[0], 0)
        writer.call(0, 10, (1 << 24) | 1, "ncclCommInitRank", INIT, payload)
    for n in range(calls):
        writer.call(
            n * 1000, n * 1000 + 100, (1 << 24) | 1, "ncclAllReduce", SIZED, struct.pack("<QQ", 77, 4)
        )
    writer.close("node0", environment)
    return folder
