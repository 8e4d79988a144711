"""Which rank each process is, and the members of each communicator, by all files together.

A rank is said by the environment that nsys started the program with, by the file's name, or by the place in the widest
communicator, as far as it shows that it holds all ranks. What contradicts is refused; an order is never guessed.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from tracekit.errors import InputError
from tracekit.files.source import Source
from tracekit.ingest.identify import rank_of_name
from tracekit.ingest.nsys.survey import Process

RECORD: Final = (
    "start each rank by nsys: `torchrun --no-python ... nsys profile --trace=cuda,nvtx --sample=none "
    "-o rank%q{RANK} python train.py`"
)


@dataclass(frozen=True)
class Identity:
    """Ranks of processes and members of communicators.

    ranks: by place in the list of processes. world: ranks of the job where it is known. members: by communicator its
    ranks, sorted, None where they are unknown. peers: by communicator and place there the rank.
    """

    ranks: tuple[int, ...]
    world: int | None
    members: Mapping[int, tuple[int, ...] | None]
    peers: Mapping[tuple[int, int], int]


def identify(processes: Sequence[Process], sources: Mapping[str, Source]) -> Identity:
    """Return the rank of each process and the members of communicators; InputError where a rank is unknown."""
    given = _by_environment(processes, sources)
    placed, wide = _placed(processes)
    ranks = given or placed
    if ranks is None:
        raise InputError(
            f"{processes[0].path}: nothing shows which rank its processes are: neither the file's name, nor RANK in "
            f"its environment, nor the start of NCCL's communicators; {RECORD}"
        )
    if given and placed and given != placed and wide > max(given):
        at = next(i for i, (a, b) in enumerate(zip(given, placed, strict=True)) if a != b)
        raise InputError(
            f"{processes[at].path}: its name or environment says rank {given[at]}, and its communicator of {wide} says "
            f"{placed[at]}; rename the files to say rank_<n>"
        )
    _refuse_twins(processes, ranks)
    worlds = {p.own_world for p in processes if p.own_world is not None and p.own_world > max(ranks)}
    world = worlds.pop() if len(worlds) == 1 else (wide if ranks == placed and wide > max(ranks) else None)
    members, peers = _members(processes, ranks, world)
    return Identity(ranks, world, members, peers)


def _by_environment(processes: Sequence[Process], sources: Mapping[str, Source]) -> tuple[int, ...] | None:
    """Return the ranks by environment or name; None where one has none. InputError where they contradict."""
    number: dict[str, int] = defaultdict(int)
    for process in processes:
        number[process.path] += 1
    found = []
    for process in processes:
        source = sources[process.path]
        named = rank_of_name(source.name, source.folders)[0] if number[process.path] == 1 else None
        said = process.own_rank
        if said is not None and named is not None and said != named:
            raise InputError(
                f"{process.path}: its name says rank {named}, and its environment rank {said}; rename it "
                "to say rank_<n>"
            )
        rank = named if said is None else said
        if rank is None:
            return None
        found.append(rank)
    return tuple(found)


def _placed(processes: Sequence[Process]) -> tuple[tuple[int, ...] | None, int]:
    """Return the ranks by the places in the one widest communicator, and its size; None where it may not hold all.

    Where another communicator lacks more members than the widest one, that one holds a part of the job.
    """
    sizes = {name: size for process in processes for name, (_, size) in process.places.items()}
    wide = max(sizes.values(), default=0)
    for name in sorted(name for name, size in sizes.items() if size == wide):
        own = [
            process.places[name][0] for process in processes if process.places.get(name, (0, 0))[1] == wide
        ]
        if len(own) != len(processes) or len(set(own)) != len(own):
            continue
        silent = wide - len(own)
        lacks = [sizes[c] - sum(c in p.places for p in processes) for c in sizes if c]
        if (name or not silent) and max(lacks, default=0) <= silent:
            return tuple(own), wide
    return None, wide


def _refuse_twins(processes: Sequence[Process], ranks: Sequence[int]) -> None:
    """Raise InputError where two processes are one rank."""
    first: dict[int, Process] = {}
    for process, rank in zip(processes, ranks, strict=True):
        other = first.setdefault(rank, process)
        if other is not process:
            raise InputError(
                f"{process.path}: it is rank {rank}, as {other.path} is; give one capture of each rank of one job"
            )


def _members(
    processes: Sequence[Process], ranks: Sequence[int], world: int | None
) -> tuple[dict[int, tuple[int, ...] | None], dict[tuple[int, int], int]]:
    """Return the ranks of each communicator, and the rank at each place.

    Where its size was recorded, its members are its users, and the silent ranks if it lacks as many. Where it was
    not, they are its users, as long as no rank is silent.
    """
    users: dict[int, set[int]] = defaultdict(set)
    sizes: dict[int, int] = {}
    peers: dict[tuple[int, int], int] = {}
    for process, rank in zip(processes, ranks, strict=True):
        for name in process.users - {0}:
            users[name].add(rank)
        for name, (place, size) in process.places.items():
            if name:
                sizes[name] = size
                peers[name, place] = rank
    silent = set(range(world if world is not None else max(ranks) + 1)) - set(ranks)
    alone = any(len(own) == 1 for own in users.values())
    found: dict[int, tuple[int, ...] | None] = {}
    for name, own in users.items():
        known: set[int] | None = own | silent if name in sizes and len(own) < sizes[name] else own
        if name in sizes:
            known = known if known is not None and len(known) == sizes[name] else None
        elif silent or alone:
            known = None
        found[name] = None if known is None else tuple(sorted(known))
    return found, peers
