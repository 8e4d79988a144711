"""The place of each rank in the cluster, as the user's file says: host, switch, and rail of the network.

Three kinds of file are read, recognised by the first line:

    rank,host,switch,rail       a table with a header (commas or tabs); `host` and one more column are needed
    node01 slots=8              a hostfile of MPI or DeepSpeed (also node01:8, or names alone): ranks in turn
    SwitchName=s1 Nodes=n[1-4]  lines of Slurm's topology, beside a hostfile or hosts that traces name

A rail is the network card's network: card 3 of every host is on rail 3 where a cluster is wired by rails.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike, fspath
from pathlib import Path
from typing import Final

from tracekit.errors import InputError, UsageError
from tracekit.small_files import read_small
from tracekit.text import plain, ranges, whole_number
from tracekit.thresholds.ingest import MAX_HOSTS_FILE, MAX_RANKS

HostsFile = str | PathLike[str]

HOST_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
"""A name of a host, a switch or a rail: nothing else is printed as one."""
_COLUMNS: Final = {"rank": "rank", "host": "host", "switch": "switch", "rail": "rail", "nic": "rail"}
_NODES: Final = re.compile(r"([^\[\]]*)\[([\d,-]+)\]([^\[\]]*)")
_BETWEEN: Final = re.compile(r",(?![^\[\]]*\])")
"""A comma outside brackets."""
_PORT: Final = re.compile(r":\d{1,5}$")
_ADDRESS: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}$|.*:.*:")
"""An address of the internet protocol, version 4 or 6: its parts between dots are no domains."""
_SHOWN: Final = 40
"""Characters of a wrong value that an error repeats."""


@dataclass(frozen=True)
class Place:
    """Where a rank runs; an empty name is unknown.

    host: its machine. switch: the first switch of that host (or of its card). rail: the network of its card.
    """

    host: str = ""
    switch: str = ""
    rail: str = ""


@dataclass
class HostList:
    """What one file says, before it is known how many ranks the job has; lines count from 1."""

    path: str
    places: dict[int, Place] = field(default_factory=dict)  # by rank, of a table
    hosts: list[tuple[str, int | None]] = field(default_factory=list)  # (name, slots) of a hostfile
    switches: dict[str, str] = field(default_factory=dict)  # by host
    lines: dict[int, int] = field(default_factory=dict)  # by rank, of a table
    named: int = 0  # nodes in lists of nodes

    def of_job(self, world: int | None, hosts: Mapping[int, str]) -> dict[int, Place]:
        """Return the place of each rank that the file gives a place to.

        world: ranks of the job, None if unknown. hosts: the host of each rank as traces name it. Raises UsageError
        for a rank that the job does not have, and where hosts without slots cannot share the job evenly.
        """
        beyond = [rank for rank in self.places if world is not None and rank >= world]
        if beyond:
            where = f"{self.path}:{self.lines[beyond[0]]}"
            raise UsageError(
                f"{where}: rank {beyond[0]} is outside the job of {world} ranks; give the file of this job"
            )
        places = self.places or dict(enumerate(Place(host) for host in self._in_turn(world)))
        if not places:
            places = {rank: Place(host) for rank, host in hosts.items() if host in self.switches}
        return {
            rank: replace(p, switch=p.switch or self.switches.get(p.host, "")) for rank, p in places.items()
        }

    def _in_turn(self, world: int | None) -> Iterator[str]:
        """The host of each rank in turn: as many ranks as a host has slots, or an even share."""
        if all(slots is None for _, slots in self.hosts) and self.hosts:
            each, left = divmod(world or 0, len(self.hosts))
            if left or not each:
                raise UsageError(
                    f"{self.path}: names {len(self.hosts)} hosts without slots, and the job has "
                    f"{world or 'an unknown number of'} ranks; write the ranks of each host, as in `node01 slots=8`"
                )
            return (host for host, _ in self.hosts for _ in range(each))
        most = MAX_RANKS if world is None else world
        every = (host for host, slots in self.hosts for _ in range(1 if slots is None else slots))
        return (host for host, _ in zip(every, range(most), strict=False))


def read_hosts(given: HostsFile | HostList) -> HostList:
    """Return what a file says about places; a list that was read already, as it is.

    Raises InputError, with file, line, reason and remedy, for a wrong file.
    """
    if isinstance(given, HostList):
        return given
    name = fspath(given)
    try:
        text = read_small(Path(name), MAX_HOSTS_FILE).decode("utf-8-sig")
    except OSError as error:
        raise InputError(
            f"{name}: cannot be read ({error.strerror or error}); name a hostfile or table"
        ) from error
    except UnicodeDecodeError as error:
        raise InputError(f"{name}: is not text; name a hostfile or a table of ranks and hosts") from error
    lines = [(n, line.partition("#")[0].strip()) for n, line in enumerate(text.splitlines(), 1)]
    lines = [(n, line) for n, line in lines if line]
    if not lines:
        raise InputError(
            f"{name}: names no host; write `rank,host` with a row for each rank, or `node01 slots=8`"
        )
    made = HostList(name)
    first = re.split(r"[,\t]", lines[0][1].lower())
    if len(first) > 1 and "host" in {column.strip() for column in first}:
        _read_table(made, lines)
    else:
        for number, line in lines:
            _read_line(made, number, line)
    return made


def _wrong(made: HostList, line: int, reason: str, remedy: str) -> InputError:
    return InputError(f"{made.path}:{line}: {reason}; {remedy}")


def _named(made: HostList, line: int, text: str, what: str) -> str:
    """`text` as a name of `what`; InputError where it is no name."""
    if not HOST_NAME.fullmatch(text):
        reason = f"{plain(text[:_SHOWN])!r} is no name of a {what}"
        raise _wrong(made, line, reason, "names hold letters, digits, `.`, `-` and `_`")
    return text


def _read_table(made: HostList, lines: Sequence[tuple[int, str]]) -> None:
    """Read a table with a header: places by rank, or the switch of each host."""
    (top, header), *rows = lines
    cut = "\t" if "\t" in header else ","
    given = [c.strip().lower() for c in header.split(cut)]
    columns = [_COLUMNS.get(c, "") for c in given]
    if "" in columns or len(set(columns)) < len(columns) or "host" not in columns or len(columns) < 2:
        reason = f"the header {plain(header[:_SHOWN])!r} is not that of a table of places"
        raise _wrong(made, top, reason, "write rank,host and, where known, switch and rail, each once")
    if "rank" not in columns and columns.count("switch") != len(columns) - 1:
        raise _wrong(made, top, "the column rank is missing", "write rank,host,rail with a row for each rank")
    for number, line in rows:
        values = [v.strip() for v in line.split(cut)]
        if len(values) != len(columns):
            reason = f"{len(values)} values in a row, the header has {len(columns)} columns"
            raise _wrong(
                made, number, reason, "write one value for each column; it may be empty but for the host"
            )
        row = dict(zip(columns, values, strict=True))
        rank = row.pop("rank", None)
        host = _named(made, number, row["host"], "host")
        known = {c: _named(made, number, v, c) for c, v in row.items() if v}
        if rank is None:
            _switch(made, number, host, known.get("switch", ""))
        else:
            _rank(made, number, rank, Place(**known))


def _rank(made: HostList, line: int, text: str, place: Place) -> None:
    """Note the place of a rank, which must not have another one."""
    rank = whole_number(text, MAX_RANKS - 1)
    if rank is None:
        raise _wrong(
            made, line, f"{plain(text[:_SHOWN])!r} is no rank", f"ranks are numbers from 0 to {MAX_RANKS - 1}"
        )
    if rank in made.places:
        raise _wrong(made, line, f"rank {rank} is in line {made.lines[rank]} already", "write each rank once")
    made.places[rank], made.lines[rank] = place, line


def _switch(made: HostList, line: int, host: str, switch: str) -> None:
    """Note the switch of a host, which must not have another one."""
    if switch and made.switches.setdefault(host, switch) != switch:
        reason = f"host {host} is on switch {made.switches[host]} and on {switch}"
        raise _wrong(made, line, reason, "write the first switch of each host once")


def _read_line(made: HostList, number: int, line: str) -> None:
    """Read a line of a hostfile, or one of Slurm's topology: of a first switch, as those above it list `Switches`."""
    if line.startswith("SwitchName="):
        pairs = dict(word.partition("=")[::2] for word in line.split())
        name = _named(made, number, pairs["SwitchName"], "switch")
        if not pairs.get("Switches"):
            for host in _unfolded(made, number, pairs.get("Nodes", "")):
                _switch(made, number, host, name)
        return
    first, *words = line.split()
    name, colon, slots = first.partition(":")
    slots_written = [slots] * bool(colon) + [w.partition("=")[2] for w in words if w.startswith("slots=")]
    counts = [whole_number(text, MAX_RANKS) for text in slots_written]
    if not all(counts) or len(counts) > 1:
        raise _wrong(made, number, "the slots of a host are one number from 1", "write `node01 slots=8`")
    made.hosts.append((_named(made, number, name, "host"), counts[0] if counts else None))


def _unfolded(made: HostList, line: int, text: str) -> Iterator[str]:
    """The names that Slurm writes as `node[01-03,7],login`."""
    for part in _BETWEEN.split(text):
        match = _NODES.fullmatch(part)
        for name in (match[1] + n + match[3] for n in _counted(match[2])) if match else (part,):
            made.named += 1
            if made.named > MAX_RANKS:
                raise _wrong(
                    made, line, f"more than {MAX_RANKS} nodes", "give the topology of one job's hosts"
                )
            yield _named(made, line, name, "host")


def _counted(text: str) -> Iterator[str]:
    """The numbers of `01-03,7`, each as wide as the first of its range; what is no range stays in its brackets."""
    for part in text.split(","):
        first, _, last = part.partition("-")
        low, high = whole_number(first, MAX_RANKS), whole_number(last or first, MAX_RANKS)
        if low is None or high is None or low > high:
            yield f"[{part}]"
        else:
            yield from (f"{n:0{len(first)}}" for n in range(low, high + 1))


def contradictions(places: Mapping[int, Place], hosts: Mapping[int, str]) -> str:
    """Return the words on ranks with traces that name another host than the file; empty where all agree.

    A name agrees with its first part, as node1 does with node1.cluster.
    """
    other = {
        rank: host
        for rank, host in hosts.items()
        if rank in places and places[rank].host.partition(".")[0] != host.partition(".")[0]
    }
    if not other:
        return ""
    rank = min(other)
    return (
        f"the traces of rank {_in_ranges(other)} name other hosts, as {plain(other[rank])} for rank {rank}, which the "
        f"file puts on {places[rank].host}; the file counts"
    )


def unplaced(places: Mapping[int, Place], ranks: Iterable[int]) -> str:
    """Return the words on `ranks` that the file gives no place; empty where it gives one to all."""
    lacking = sorted(set(ranks) - set(places))
    return (
        f"it gives rank {_in_ranges(lacking)} no place; hosts that traces name count there" if lacking else ""
    )


def _in_ranges(ranks: Iterable[int]) -> str:
    return ranges(sorted(ranks), 8)


def same_host(one: str | None, other: str | None) -> bool:
    """Return whether two names are of one host: with or without a port, a domain, or capitals."""
    if not one or not other:
        return False
    names = [name.lower().rpartition(":")[0] if _PORT.search(name) else name.lower() for name in (one, other)]
    if any(_ADDRESS.match(name) for name in names) or all("." in name for name in names):
        return names[0] == names[1]
    return names[0].partition(".")[0] == names[1].partition(".")[0]
