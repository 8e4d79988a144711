"""What NCCL prints of a job's communicators and calls, with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL.

Written from NVIDIA/nccl src/init.cc, src/enqueue.cc and src/debug.cc (2.4 to 2.30) and from torch's ProcessGroupNCCL:
messages outside a batch have a communicator for each pair, an all-to-all is a group of messages. The author of the
reader wrote this too, so that it cannot show where both misread NCCL.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.evidence.stuck_job import elements
from tracekit.dumps.unpickle import loads_plain

KINDS = {
    "all_reduce": "AllReduce",
    "_all_gather_base": "AllGather",
    "_reduce_scatter_base": "ReduceScatter",
    "broadcast": "Broadcast",
}
DTYPES = {"Int": 2, "Long": 4, "Half": 6, "Float": 7, "BFloat16": 9}
VERSIONS = ("2.10", "2.18", "2.21", "2.30")
"""From 2.27 on opCount stays 0 in communicators of one node."""


@dataclass
class Process:
    """One rank's process, and its communicators by their members."""

    rank: int
    version: str
    launcher: str = "bare"
    calls: dict[str, int] = field(default_factory=dict)
    pointers: dict[str, int] = field(default_factory=dict)
    within_node: set[str] = field(default_factory=set)

    def line(self, text: str) -> str:
        """A line as NCCL prints it, behind its launcher's prefix."""
        before = {"bare": "", "torchrun": f"[default{self.rank % 8}]:", "srun": f"{self.rank}: "}[
            self.launcher
        ]
        host, pid = f"node{self.rank // 8}.cluster", 9000 + self.rank
        return f"{before}{host}:{pid}:{pid + 300} [{self.rank % 8}] NCCL INFO {text}"

    def communicator(self, name: str, ranks: list[int]) -> Iterator[str]:
        """The lines of a communicator's initialisation, when it is first used."""
        if name in self.pointers:
            return
        pointer = self.pointers[name] = 0x55D000000000 + 4096 * (len(self.pointers) + 1) + self.rank * 2**20
        self.calls[name] = 0
        self.within_node |= {name} if len({member // 8 for member in ranks}) == 1 else set()
        place, size, device = ranks.index(self.rank), len(ranks), self.rank % 8
        told = f"comm {pointer:#x} rank {place} nranks {size} cudaDev {device} "
        if self.version == "2.10":
            yield self.line(told + f"busId {device + 1:x}000 - Init COMPLETE")
            return
        told += f"nvmlDev {device} busId {device + 1:x}000 commId {hash_of(name):#x}"
        began = "" if self.version == "2.18" else "ncclCommInitRank "
        head = f"[Rank {place}] " if self.version == "2.30" else ""
        yield self.line(f"{head}{began}{told} - Init START")
        yield self.line(f"{began}{told} - Init COMPLETE")

    def call(self, name: str, size: int, kind: str, count: int, dtype: int, root: int = 0) -> str:
        """The line of a call, before it is launched."""
        number = 0 if self.version == "2.30" and name in self.within_node else self.calls[name]
        received = "(nil)" if kind == "Send" else "0x7f2b00000200"
        given = "(nil)" if kind == "Recv" else "0x7f2b00000000"
        return self.line(
            f"{kind}: opCount {number:x} sendbuff {given} recvbuff {received} count {count} datatype "
            f"{dtype} op 0 root {root} comm {self.pointers[name]:#x} [nranks={size}] stream 0x5583a0"
        )


def hash_of(name: str) -> int:
    """A communicator's id, the same in all its processes and in every run."""
    return int.from_bytes(f"{name}-communicator".encode()[:8].ljust(8, b"x"), "big")


def lines_of(rank: int, dump: dict[str, Any], version: str, launcher: str) -> Iterator[str]:
    """The lines of one rank."""
    process = Process(rank, version, launcher)
    groups = {name: json.loads(config["ranks"]) for name, config in dump["pg_config"].items()}
    for name, ranks in groups.items():
        if len(ranks) == len(groups["0"]):
            yield from process.communicator(name, ranks)
    for entry in dump["entries"]:
        name = entry["process_group"][0]
        ranks, op = groups[name], entry["profiling_name"].partition(":")[2]
        dtype = DTYPES[entry["input_dtypes"][0]]
        count = elements(entry["input_sizes"])
        if entry["is_p2p"]:
            kind, _, ends = op.partition(" ")
            peer = ranks[int(ends.replace("<", " ").replace(">", " ").split()[-1].lstrip("-"))]
            pair = sorted((rank, peer))
            name = f"{name}:{pair}"
            yield from process.communicator(name, pair)
            yield process.call(name, 2, kind.capitalize(), count, dtype, pair.index(peer))
        else:
            yield from process.communicator(name, ranks)
            if op == "all_to_all":
                for peer in range(len(ranks)):
                    yield process.call(name, len(ranks), "Send", count // len(ranks), dtype, peer)
                    yield process.call(name, len(ranks), "Recv", count // len(ranks), dtype, peer)
            else:
                yield process.call(name, len(ranks), KINDS[op], count, dtype)
        process.calls[name] += 1


def by_rank(folder: Path, version: str = "2.21", launcher: str = "bare") -> dict[int, list[str]]:
    """The lines of each rank that left a dump."""
    found = {}
    for path in sorted(folder.iterdir()):
        rank = int(path.name.rpartition("_")[2])
        found[rank] = list(lines_of(rank, loads_plain(path.read_bytes()), version, launcher))
    return found


def one_log(folder: Path, version: str = "2.21", launcher: str = "bare", seed: int = 1) -> str:
    """One log of all ranks, whose lines come in any order between ranks."""
    rng = random.Random(seed)
    left = {rank: iter(lines) for rank, lines in by_rank(folder, version, launcher).items()}
    out = []
    while left:
        rank = rng.choice(list(left))
        for _ in range(rng.randrange(1, 9)):
            line = next(left[rank], None)
            if line is None:
                del left[rank]
                break
            out.append(line)
    return "\n".join(out) + "\n"
