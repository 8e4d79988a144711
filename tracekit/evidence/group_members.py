"""The members of process groups that lines of a log name, from the places that their ranks have in them.

A group's members are numbered in the order of their global ranks. Places and ranks of some members thus tell the others
where no choice is left, or where those known lie at one distance. Up to torch 2.3 each process counts its own groups:
groups of one name are separated there by the places that would be taken twice. NCCL prints the rank of a process within
a communicator, and no rank of the job. Used by `as_dumps` and `nccl_groups`.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise

from tracekit.dumps.rank_dump import RankDump
from tracekit.evidence.log_file import GroupKey, LogFile, Mark
from tracekit.evidence.log_lines import Work
from tracekit.evidence.log_reports import MemberState
from tracekit.evidence.nccl_calls import Communicator, Process
from tracekit.mesh import Mesh
from tracekit.mesh.group_descriptions import hinted_dims

Marks = dict[int, dict[GroupKey, Mark]]
"""By rank, how far it is in each group."""


@dataclass(frozen=True, slots=True)
class Members:
    """The members of one group: all of them, or, where `whole` is False, those that something tells."""

    name: str
    desc: str
    ranks: tuple[int, ...]
    whole: bool


def merged_marks(logs: Sequence[LogFile]) -> Marks:
    """Return how far each rank is in each group; of two logs that tell it, the later one counts, else the further."""
    found: Marks = {}
    times: dict[tuple[int, GroupKey], float] = {}
    for log in sorted(logs, key=lambda log: log.path):
        at = log.last.seconds if log.last is not None else -1.0
        for rank, marks in log.marks.items():
            for key, mark in marks.items():
                known = found.setdefault(rank, {}).get(key)
                before = times.get((rank, key), -1.0)
                if known is None or (at, mark.enqueued or 0) > (before, known.enqueued or 0):
                    found[rank][key] = mark
                    times[rank, key] = at
    return found


def members_of(
    marks: Marks, dumps: Mapping[int, RankDump], world: int | None, mesh: Mesh | None = None
) -> dict[tuple[int, GroupKey], Members]:
    """Return the members of the group that a rank's mark is of, by rank and the group's key.

    Marks of groups whose members nothing shows, not even in part, are left out. mesh: that of the user, whose axes show
    the members of a group where its description or its places name them.
    """
    by_key: dict[GroupKey, dict[int, Mark]] = defaultdict(dict)
    for rank, of_rank in marks.items():
        for key, mark in of_rank.items():
            by_key[key][rank] = mark
    found: dict[tuple[int, GroupKey], Members] = {}
    for key, parts in by_key.items():
        for ranks in _separated(parts):
            own = {r: parts[r] for r in ranks}
            members = _members(key, own, dumps, world)
            if mesh is not None and key != ("", "") and (members is None or not members.whole):
                members = _along_an_axis(key, own, mesh) or members
            if members is not None:
                found.update({(rank, key): members for rank in ranks if rank in members.ranks})
    return _like_siblings(found, marks, world)


def _like_siblings(
    found: dict[tuple[int, GroupKey], Members], marks: Marks, world: int | None
) -> dict[tuple[int, GroupKey], Members]:
    """Complete groups of which one member is known like whole groups of the same description and size: by their step.

    Groups along one axis of a mesh number their members at one distance.
    """
    steps: dict[tuple[str, int], set[int]] = defaultdict(set)
    for members in found.values():
        if members.whole and members.desc and len(members.ranks) > 1:
            distances = {b - a for a, b in pairwise(members.ranks)}
            steps[members.desc, len(members.ranks)] |= distances if len(distances) == 1 else {0, -1}
    for (rank, key), members in list(found.items()):
        mark = marks[rank][key]
        known = steps.get((members.desc, mark.size or 0), set())
        if members.whole or len(known) != 1 or mark.place is None or mark.size is None:
            continue
        step = min(known)
        ranks = tuple(rank + (place - mark.place) * step for place in range(mark.size))
        if ranks[0] >= 0 and (world is None or ranks[-1] < world) and set(members.ranks) <= set(ranks):
            found[rank, key] = Members(members.name, members.desc, ranks, whole=True)
    return found


def _separated(parts: Mapping[int, Mark]) -> Iterable[list[int]]:
    """Yield the ranks of each group of one name; a rank whose group nothing tells is in none."""
    places = Counter(mark.place for mark in parts.values())
    if all(mark.unique for mark in parts.values()) or max(places.values()) == 1:
        yield list(parts)
        return
    first: dict[int, list[int]] = defaultdict(list)
    for rank, mark in parts.items():
        if mark.place is not None:
            first[rank - mark.place].append(rank)
    blocks = [sorted(ranks) for base, ranks in sorted(first.items()) if base >= 0]
    if all(len(block) > 1 for block in blocks):
        yield from blocks


def _members(
    key: GroupKey, parts: Mapping[int, Mark], dumps: Mapping[int, RankDump], world: int | None
) -> Members | None:
    """Return the members of one group."""
    name, desc = key
    if key == ("", "") and len({mark.work.seq if mark.work else None for mark in parts.values()}) != 1:
        return None  # calls of several groups
    sizes = Counter(mark.size for mark in parts.values() if mark.size)
    size = sizes.most_common(1)[0][0] if sizes else None
    if in_dumps := _in_dumps(key, parts, dumps):
        return Members(name, desc, in_dumps, whole=True)
    placed = {mark.place: rank for rank, mark in parts.items() if mark.place is not None}
    everybody = all(place == rank for place, rank in placed.items())
    if desc == "default_pg" or (key == ("", "") and everybody):
        known = size or world
        if not everybody or (key == ("", "") and size and world and size != world):
            return None
        count = max([known or 0, *(rank + 1 for rank in parts)])
        return Members(name, "default_pg", tuple(range(count)), whole=known is not None)
    if key == ("", "") or len(placed) < len(parts):
        return None
    ranks = _filled(placed, size, world)
    return Members(
        name, desc, tuple(sorted({*ranks, *placed.values()})), whole=size is not None and len(ranks) == size
    )


def _along_an_axis(key: GroupKey, parts: Mapping[int, Mark], mesh: Mesh) -> Members | None:
    """Return the members of the only group along axes of the mesh that has these ranks at these places."""
    hints = hinted_dims((key[1],)) if key[1] else frozenset[str]()
    sizes = {mark.size for mark in parts.values() if mark.size}
    found: set[tuple[int, ...]] = set()
    for count in range(1, len(mesh.order) + 1):
        for axes in combinations(mesh.order, count):
            if hints and set(axes) != hints:
                continue
            line = mesh.line(min(parts), axes) if min(parts) in mesh.coordinates else ()
            placed = all(rank in line and line.index(rank) == mark.place for rank, mark in parts.items())
            if placed and len(line) > 1 and sizes <= {len(line)}:
                found.add(line)
    return Members(key[0], key[1], found.pop(), whole=True) if len(found) == 1 else None


def with_reports(marks: Marks, members: dict[tuple[int, GroupKey], Members], logs: Sequence[LogFile]) -> None:
    """Add to `marks` the states that a rank printed of its group's members, where these are known.

    A rank's own lines count before those of others: only what they leave out is added.
    """
    for log in logs:
        for writer, key, report in log.reports:
            group = None if writer is None else members.get((writer, key))
            same = len({state.call for state in report.members.values()}) == 1
            if group is None or not group.whole or (report.apart and same):
                continue  # of one call under two numbers, either may be the wrong one
            for place, state in report.members.items():
                if place < len(group.ranks):
                    rank = group.ranks[place]
                    members[rank, key] = group
                    _add_state(marks.setdefault(rank, {}).setdefault(key, Mark(place)), state)


def _add_state(mark: Mark, state: MemberState) -> None:
    """Add the state that another rank shows to a mark."""
    done = state.seq if state.finished else state.seq - 1
    if mark.enqueued is None and mark.work is None:
        mark.enqueued, mark.completed = state.seq, done
    if state.call.op and not state.finished and mark.work is None and (mark.completed or 0) < state.seq:
        mark.work = Work(state.seq, state.call, 0, 0)
    mark.started = max(mark.started or 0, state.seq)


def _in_dumps(key: GroupKey, parts: Mapping[int, Mark], dumps: Mapping[int, RankDump]) -> tuple[int, ...]:
    """Return the members that a dump lists of a group of this name with these ranks in it; none where none does."""
    lists = {
        tail.ranks
        for dump in dumps.values()
        for tail in dump.groups
        if tail.name == key[0] and tail.ranks and set(tail.ranks) >= set(parts)
    }
    return lists.pop() if len(lists) == 1 else ()


def _filled(placed: Mapping[int, int], size: int | None, world: int | None) -> list[int]:
    """Return the ranks at all places up to the last known one, or up to the size, as far as they are determined."""
    if not placed or any(rank < place for place, rank in placed.items()):
        return []
    last = (size or max(placed) + 1) - 1
    known = sorted(placed.items())
    steps = {(r2 - r1) / (p2 - p1) for (p1, r1), (p2, r2) in pairwise(known)}
    regular = steps.pop() if len(steps) == 1 and len(known) > 1 else None
    found = []
    for place in range(last + 1):
        if place in placed:
            found.append(placed[place])
        elif regular is not None and regular.is_integer() and regular > 0:
            rank = known[0][1] + int(regular) * (place - known[0][0])
            found.extend([rank] if rank >= 0 and (world is None or rank < world) else [])
        elif between := _only_choice(place, known):
            found.append(between)
    return found


def _only_choice(place: int, known: Sequence[tuple[int, int]]) -> int | None:
    """Return the rank at a place between two known ones where ranks lie as close as places there; None otherwise."""
    for (p1, r1), (p2, r2) in pairwise(known):
        if p1 < place < p2 and r2 - r1 == p2 - p1:
            return r1 + place - p1
    return None


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
    stated = any(process.rank is not None for process in processes)
    return devices if alone and not stated and sorted(devices) == list(range(widest)) else []


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
