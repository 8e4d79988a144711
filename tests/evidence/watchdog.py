"""Watchdog lines of torch 1.13 to 2.13, as each version spells them, with the prefixes of launchers.

Written from torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp of these versions; the reader was not looked at.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tests.evidence.stuck_job import GroupState, RankState

VERSIONS = ("1.13", "2.1", "2.2", "2.3", "2.4", "2.5", "2.8", "2.13")
NAMED = ("2.4", "2.5", "2.8", "2.13")
"""Versions that name groups alike on all ranks and tell how far they are."""
LAUNCHERS = ("bare", "torchrun", "srun", "ray", "kubernetes", "container")


@dataclass(frozen=True)
class Spelling:
    """A version of torch and a launcher."""

    version: str = "2.8"
    launcher: str = "bare"
    colours: bool = False
    desync: bool = False
    """TORCH_NCCL_DESYNC_DEBUG=1, which records start times as well."""

    @property
    def number(self) -> tuple[int, int]:
        major, minor = self.version.split(".")
        return int(major), int(minor)


def stamp(second: float, spelling: Spelling) -> str:
    """The prefix of glog; since 2.2 with date and time."""
    whole = int(second)
    clock = f"{(whole // 3600) % 24:02}:{(whole // 60) % 60:02}:{whole % 60:02}.{int(second % 1 * 1e9):09}"
    return (
        f"[E1118 {clock} ProcessGroupNCCL.cpp:632] "
        if spelling.number >= (2, 2)
        else "[E ProcessGroupNCCL.cpp:821] "
    )


def launched(text: str, rank: int, local: int, spelling: Spelling) -> str:
    """A line behind its launcher's prefix."""
    before = {
        "bare": "",
        "torchrun": f"[default{local}]:",
        "srun": f"{rank}: ",
        "ray": f"(WorkerDict pid={4000 + rank}) ",
        "kubernetes": f"2026-11-18T04:00:0{rank % 10}.123456Z stderr F ",
        "container": f"trainer-{rank}  | ",
    }[spelling.launcher]
    marked = f"[rank{rank}]:{text}" if spelling.number >= (2, 2) else text
    return before + (f"\x1b[31m{marked}\x1b[0m" if spelling.colours else marked)


def prefix(group: GroupState, spelling: Spelling) -> str:
    """How a line names its group and the rank in it."""
    if spelling.number < (2, 3):
        return f"[Rank {group.place}] "
    if spelling.number < (2, 4):
        return f"[PG {group.local} Rank {group.place}] "
    desc = "" if group.desc in {"", "undefined"} else f"({group.desc})"
    if spelling.number < (2, 5):
        return (
            f"[PG {group.name} {desc} Rank {group.place}] "
            if desc
            else f"[PG {group.name} Rank {group.place}] "
        )
    return f"[PG ID {group.local} PG GUID {group.name}{desc} Rank {group.place}] "


def work(group: GroupState, spelling: Spelling, waited_ms: int) -> str:
    """The message of a time-out."""
    call = group.open
    assert call is not None
    given, taken = call.given, call.given
    if call.op == "_ALLGATHER_BASE":
        taken = given * len(group.ranks)
    if call.op == "_REDUCE_SCATTER_BASE":
        given = taken * len(group.ranks)
    counts = f", NumelIn={given}, NumelOut={taken}" if spelling.number >= (2, 1) else ""
    return (
        f"[Rank {group.place}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={call.seq}, "
        f"OpType={call.op}{counts}, Timeout(ms)=600000) ran for {waited_ms} milliseconds before timing out."
    )


def state(group: GroupState, spelling: Spelling) -> str:
    """How far a group is, where its call timed out."""
    call = group.open
    assert call is not None
    head = prefix(group, spelling)
    numbers = (group.enqueued, group.completed if group.completed > 0 else -1)
    if spelling.number < (2, 5):
        told = f"last enqueued NCCL work: {numbers[0]}, last completed NCCL work: {numbers[1]}."
        return f"{head}Timeout at NCCL work: {call.seq}, {told}"
    if spelling.number < (2, 6):
        return (
            f"{head}Exception (either an error or timeout) detected by watchdog at work: {call.seq}, "
            f"last enqueued NCCL work: {numbers[0]}, last completed NCCL work: {numbers[1]}."
        )
    started = f"{group.started} ({group.ops[group.started]})" if spelling.desync and group.started else "-1"
    began = f", last started work: {started}" if spelling.number >= (2, 13) else ""
    return (
        f"{head} failure detected by watchdog at work sequence id: {call.seq} PG status: last enqueued work: "
        f"{numbers[0]}{began}, last completed work: {numbers[1]}"
    )


def desync(job: Mapping[int, RankState], group: GroupState) -> str | None:
    """The states of all members as the rank that timed out prints them; None where its device has begun nothing new."""
    if group.started <= group.completed:
        return None  # torch fails an assertion there and prints no report
    trace: dict[int, dict[str, dict[str, list[int]]]] = {}
    never = []
    for place, rank in enumerate(group.ranks):
        own = next((g for g in job[rank].groups if g.name == group.name), None) if rank in job else None
        if own is None or not own.started:
            never.append(place)
            continue
        state_ = "finished" if own.completed >= own.started else "started"
        trace.setdefault(own.started, {}).setdefault(state_, {}).setdefault(own.ops[own.started], []).append(
            place
        )
    head = f"\n\t - [{group.place}] Timeout at collective: {group.ops[group.started]}, #{group.started}"
    if never:
        listed = ", ".join(map(str, never))
        return (
            f"{head}\n\t - To our best knowledge, ranks [{listed}] are the lagging ranks that caused this timeout. "
            "They never joined any collectives"
        )
    first = min(trace)
    out = head + "\n\t - To our best knowledge, the lagging/dead/mismatched ranks that caused the desync are:"
    for word, tell in (
        ("started", "\n\t   - [{}] joined but didn't finish collective #{} (count from 1)"),
        ("finished", "\n\t     [{}] finished collective #{}, but didn't join collective #{} (count from 1)"),
    ):
        places = sorted(p for own in trace[first].get(word, {}).values() for p in own)
        out += tell.format(", ".join(map(str, places)), first, first + 1) if places else ""
    out += "\n\t - Snapshot of ranks' latest states:"
    for seq in sorted(trace):
        for word in ("started", "finished"):
            if word in trace[seq]:
                out += f"\n\t   #{seq} {word} ranks:"
                for op, places in trace[seq][word].items():
                    out += f"\n\t     [{', '.join(map(str, places))}] {word} {op}"
    return out


def signal(group: GroupState, first: int, own: int, spelling: Spelling) -> str:
    """The answer of a rank to the request for dumps, which tells of the default group."""
    where = "this local rank" if first == own else f" rank {first}"
    done = group.completed if group.completed > 0 else -1
    return (
        f"{prefix(group, spelling)}Received a dump signal due to a collective timeout from {where} and we will try our "
        f"best to dump the debug info. Last enqueued NCCL work: {group.enqueued if group.enqueued > 0 else -1}, last "
        f"completed NCCL work: {done}.This is most likely caused by incorrect usages of collectives."
    )


def killed(rank: int) -> str:
    """What torchrun's agent writes of a process that the kernel killed."""
    return (
        f"E1118 13:43:19.000000 {700 + rank // 8} torch/distributed/elastic/multiprocessing/api.py:869] "
        f"failed (exitcode: -9) local_rank: {rank % 8} (pid: {9000 + rank}) of binary: /usr/bin/python3.11"
    )


def summary(rank: int) -> str:
    """The end of torchrun's report about that process."""
    return (
        "============================================================\ntrain.py FAILED\n"
        "------------------------------------------------------------\nFailures:\n  <NO_OTHER_FAILURES>\n"
        "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
        f"  time      : 2026-11-18_13:43:19\n  host      : node{rank // 8}\n"
        f"  rank      : {rank} (local_rank: {rank % 8})\n"
        f"  exitcode  : -9 (pid: {9000 + rank})\n  error_file: <N/A>\n  traceback : Signal 9 (SIGKILL) received by PID "
        f"{9000 + rank}\n============================================================"
    )


def lines_of(
    job: Mapping[int, RankState], spelling: Spelling, start: float = 50_000.0
) -> Iterator[tuple[int, float, str]]:
    """Yield (rank, time, text) of all lines that the ranks of a stuck job write, in the order of time."""
    waiting = {
        rank: state_.open_groups for rank, state_ in job.items() if state_.alive and state_.open_groups
    }
    origin = min((groups[0].open.created for groups in waiting.values() if groups[0].open), default=0)
    found: list[tuple[float, int, str]] = []
    times = {}
    for rank, groups in waiting.items():
        for group in groups:  # each group has a watchdog of its own
            assert group.open is not None
            at = start + (group.open.created - origin) / 1e9 + rank * 0.001
            times.setdefault(rank, at)
            found.append((at, rank, stamp(at, spelling) + work(group, spelling, 600_000 + rank)))
            if spelling.number >= (2, 3):
                found.append((at + 0.0001, rank, stamp(at, spelling) + state(group, spelling)))
            if spelling.desync and (report := desync(job, group)) is not None:
                found.append((at + 0.0002, rank, stamp(at, spelling) + report))
            down = "To avoid data inconsistency, we are taking the entire process down."
            found.append((at + 60, rank, stamp(at + 60, spelling) + down))
            ended = prefix(group, spelling) + "NCCL watchdog thread terminated with exception: "
            ended += work(group, spelling, 600_000 + rank)
            found.append((at + 60, rank, stamp(at + 60, spelling) + ended))
    for rank, known in job.items():
        if not known.alive:  # killed for memory before its peers began to wait
            found.append((start - 601, -1, killed(rank)))
            found.append((start - 600, -1, summary(rank)))
    first = min(times, key=lambda rank: times[rank], default=0)
    for rank, known in job.items() if spelling.number >= (2, 3) and times else ():
        if known.alive and known.talks:
            found.append(
                (start + 1, rank, stamp(start + 1, spelling) + signal(known.groups[0], first, rank, spelling))
            )
    for at, rank, text in sorted(found):
        yield rank, at, launched(text, rank, rank % 8, spelling) if rank >= 0 else text


def log(job: Mapping[int, RankState], spelling: Spelling, noise: int = 3, seed: int = 1) -> str:
    """One log of all ranks, with lines of the training between."""
    rng = random.Random(seed)
    out = [f"step {n} loss {rng.random():.4f} tokens/s {rng.randrange(10**5)}" for n in range(noise)]
    for _, _, text in lines_of(job, spelling):
        out.append(text)
        out.extend(f"step {n} loss {rng.random():.4f}" for n in range(rng.randrange(noise + 1)))
    return "\n".join(out) + "\n"


def logs(
    job: Mapping[int, RankState], spelling: Spelling, kept: Callable[[int], bool] = lambda _: True
) -> dict[int, str]:
    """A log for each rank that wrote anything."""
    found: dict[int, str] = {}
    for rank, _, text in lines_of(job, spelling):
        if kept(rank):
            found[rank] = found.get(rank, "") + text + "\n"
    return found
