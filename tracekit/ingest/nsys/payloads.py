"""What NCCL's own NVTX ranges record: communicator, place and size at its start, bytes and peer of each call.

A payload is a block of bytes: a header (domain, schema, bytes), then a C structure with fields that the
tables NVTX_PAYLOAD_SCHEMA_ENTRIES and NVTX_PAYLOAD_SCHEMAS describe. nsys exports it with `--include-blobs=true` only.
Before NCCL 2.26 it holds no communicator. Source: NVIDIA/nccl, src/include/nvtx_payload_schemas.h.
"""

import struct
from collections import defaultdict
from typing import Final, NamedTuple

from tracekit.ingest.nsys.database import Database, number
from tracekit.thresholds.ingest import MAX_COUNT, MAX_RANKS
from tracekit.thresholds.nsys import MAX_FIELDS

CALLS: Final = {
    "ncclAllReduce": "all_reduce",
    "ncclAllGather": "_all_gather_base",
    "ncclReduceScatter": "_reduce_scatter_base",
    "ncclBroadcast": "broadcast",
    "ncclBcast": "broadcast",
    "ncclReduce": "reduce",
    "ncclAlltoAll": "all_to_all",
    "ncclAllToAll": "all_to_all",
    "ncclGather": "gather",
    "ncclScatter": "scatter",
    "ncclSend": "send",
    "ncclRecv": "recv",
}
"""Names of calls in events by those of NCCL's ranges."""
MESSAGES: Final = ("send", "recv")
STARTS: Final = (
    "ncclCommInitRank",
    "ncclCommInitRankConfig",
    "ncclCommInitRankScalable",
    "ncclCommSplit",
    "ncclCommShrink",
    "ncclCommGrow",
)
"""Ranges that show the place of a process in a communicator."""
_HEADER: Final = struct.Struct("<IIIIQQ")
_FORMATS: Final = {5: "<i", 6: "<I", 9: "<q", 10: "<Q", 15: "<i", 16: "<I", 17: "<q", 18: "<Q", 22: "<Q"}
"""NVTX types of NCCL's fields: int, unsigned, long, with and without a fixed width, size_t."""
_FIELDS: Final = {
    "NCCL communicator ID": "communicator",
    "No. of ranks": "size",
    "Rank": "place",
    "Message size [bytes]": "bytes",
    "Peer rank": "peer",
}

_MOST: Final = {
    "communicator": (1 << 64) - 1,
    "size": MAX_RANKS,
    "place": MAX_RANKS - 1,
    "bytes": MAX_COUNT // MAX_RANKS,
    "peer": MAX_RANKS - 1,
}
"""Largest value of a field; a larger one is damage."""


class Payload(NamedTuple):
    """Fields of a payload; 0 for no communicator, -1 for other fields that it lacks."""

    communicator: int = 0
    size: int = -1
    place: int = -1
    bytes: int = -1
    peer: int = -1


class Schemas:
    """The payload schemas of one database, by number."""

    def __init__(self, base: Database) -> None:
        self._fields: dict[tuple[int, int], list[tuple[str, int, str]]] = defaultdict(list)
        columns = ("domainId", "schemaId", "name", "type", "offset")
        for chunk in base.rows("NVTX_PAYLOAD_SCHEMA_ENTRIES", columns):
            for domain, schema, name, kind, offset in chunk:
                known, form = _FIELDS.get(base.name(name)), _FORMATS.get(number(kind))
                fields = self._fields[number(domain), number(schema)]
                if known is not None and form is not None and len(fields) < MAX_FIELDS:
                    fields.append((known, max(number(offset), 0), form))

    def payload(self, block: object, domain: int) -> Payload:
        """Return the fields of a payload of a range in `domain`; those without a description are unknown."""
        if not isinstance(block, bytes) or len(block) < _HEADER.size:
            return Payload()
        own, _, schema, _, _, _ = _HEADER.unpack_from(block)
        fields = self._fields.get((domain, schema)) or self._fields.get((own, schema)) or ()
        found: dict[str, int] = {}
        for name, offset, form in fields:
            if _HEADER.size + offset + struct.calcsize(form) <= len(block):
                (value,) = struct.unpack_from(form, block, _HEADER.size + offset)
                if 0 <= value <= _MOST[name]:
                    found[name] = value
        return Payload(**found)
