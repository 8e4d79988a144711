"""Which rank each process of NCCL's lines is, and which of its communicators others share. Used by `nccl_groups`.

NCCL prints the rank within a communicator, and no rank of the job.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from tracekit.evidence.log_file import GroupKey, LogFile, Mark
from tracekit.evidence.nccl_calls import Communicator, Process


def processes_by_rank(logs: Sequence[LogFile], world: int | None) -> dict[int, Process]:
    """Return the process of each rank.

    Its launcher names the rank, or its place in the job's communicator shows it, or its device where one host runs all.
    """
    latest: dict[tuple[str, int], Process] = {}
    for process in (process for log in logs for process in log.nccl):
        known = latest.get((process.host, process.pid))
        if known is None or process.lines > known.lines:
            latest[process.host, process.pid] = process
    processes = [process for process in latest.values() if process.communicators]
    ranks = _named(processes) or _by_place(processes, world) or _by_device(processes, world)
    found: dict[int, Process] = {}
    for process, rank in zip(processes, ranks, strict=False):
        known = found.get(rank)
        if known is None or (known.path == process.path and known.latest < process.latest):
            found[rank] = process
    return found


def _named(processes: Sequence[Process]) -> list[int]:
    named = [process.rank for process in processes if process.rank is not None]
    return named if len(named) == len(processes) else []


def _by_place(processes: Sequence[Process], world: int | None) -> list[int]:
    """Return the places of the processes in the only communicator of the greatest size; none where one is not in it."""
    widest = max((one.size for p in processes for one in p.communicators.values()), default=0)
    if widest < (world or 0):
        return []
    found = []
    names = set()
    for process in processes:
        inside = [one for one in process.communicators.values() if one.size == widest]
        places = {one.place for one in inside}
        place = places.pop() if len(places) == 1 else None
        if place is None or process.rank not in {None, place}:
            return []
        found.append(place)
        names |= {one.name for one in inside}
    alike = len(names) == 1 or len(set(found)) == len(found)
    return found if alike else []


def _by_device(processes: Sequence[Process], world: int | None) -> list[int]:
    devices = [process.device for process in processes]
    widest = max((one.size for p in processes for one in p.communicators.values()), default=0)
    alone = len({process.host for process in processes}) == 1 and widest >= (world or 0)
    told = any(process.rank is not None for process in processes)
    return devices if alone and not told and sorted(devices) == list(range(widest)) else []


def keyed_communicators(
    processes: Mapping[int, Process], world: int | None
) -> dict[int, dict[GroupKey, tuple[Mark, Communicator]]]:
    """Return the communicators of each rank by a key that their members share, with the place of the rank in each.

    One without a name is the n-th of its size; a process with two of one name holds two ranks, and none is known.
    """
    found: dict[int, dict[GroupKey, tuple[Mark, Communicator]]] = {}
    for rank, process in processes.items():
        own: dict[GroupKey, tuple[Mark, Communicator]] = {}
        counts: Counter[int] = Counter()
        for one in process.communicators.values():
            name = one.name or f"{one.size} ranks, {counts[one.size]}"
            counts[one.size] += not one.name
            place = rank if one.place is None and one.size == world else one.place
            if (name, "") in own:
                own = {}
                break
            own[name, ""] = Mark(place, unique=bool(one.name), size=one.size), one
        found[rank] = own
    return found
