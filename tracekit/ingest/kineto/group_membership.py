"""Finds the process group of an event: member lists, rebuilt where PyTorch cut them.

PyTorch writes at most 30 members of a group ("[0, 2, 4, ..., ...]") and the group's start and stride beside
them; `distributedInfo.pg_config` lists all members of the groups known when the profiler started. Names
repeat with other members on other ranks, so a group is its member set. `Src Rank` and `Dst Rank` are global
ranks already: PyTorch writes `groupRanks[peer]` (torch/csrc/profiler/util.cpp, saveNcclMeta).
"""

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tracekit.arrays import from_ints, from_numpy, null_as, numbered_rows, to_numpy
from tracekit.ingest.file_result import FileGroup
from tracekit.thresholds.ingest import MAX_RANKS

OWN_PLACE = re.compile(r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier", re.IGNORECASE)
"""Collectives without a root: their argument `Rank` is the place of the rank that wrote the file."""
KEYS = ("pg_name", "pg_desc", "pg_ranks", "group_size", "rank_start", "rank_stride", "pg_id")


class Membership(NamedTuple):
    """The arguments of an event that describe its group; a file holds few different ones."""

    pg_name: str | None
    pg_desc: str | None
    pg_ranks: str | None
    group_size: int | None
    rank_start: int | None
    rank_stride: int | None
    pg_id: int | None

    @property
    def names_a_group(self) -> bool:
        """Whether there is a group to look for; a `wait` carries an empty list and no name, or an empty one."""
        return bool(self.name) or bool(self.pg_ranks and self.pg_ranks.strip("[] "))

    @property
    def name(self) -> str | None:
        """The group's name; before mid-2024 it was a number."""
        return self.pg_name if self.pg_name is not None or self.pg_id is None else str(self.pg_id)


@dataclass(frozen=True)
class ListedGroup:
    """An entry of `distributedInfo.pg_config` that lists its members."""

    name: str | None
    desc: str | None
    ranks: tuple[int, ...]


@dataclass
class MembershipCodes:
    """Numbers the distinct memberships of a file; -1 marks an event that names no group.

    known: code by membership. counts: events by code. places: the places of the file's own rank in its group, by code.
    """

    known: dict[Membership, int] = field(default_factory=dict)
    counts: Counter[int] = field(default_factory=Counter)
    places: dict[int, set[int]] = field(default_factory=dict)

    def encode(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the code of each row of an event_fields.SCANNED batch, int32 of shape (rows,)."""
        codes = np.full(batch.num_rows, -1, np.int32)
        columns = [_numbers(batch.column(key)) for key in KEYS]
        rows = np.flatnonzero(np.logical_or.reduce([present for _, present in columns]))
        if len(rows):
            table = np.stack([np.where(present, values, -1)[rows] for values, present in columns], axis=1)
            first, inverse = numbered_rows(*table.T)
            asked = from_numpy(rows[first])
            said = map(Membership, *(batch.column(key).take(asked).to_pylist() for key in KEYS))
            mine = [self.known.setdefault(one, len(self.known)) for one in said]
            codes[rows] = np.asarray(mine, np.int32)[inverse]
            for code, count in enumerate(np.bincount(codes[rows])):
                self.counts[code] += int(count)
            self._note_places(batch, codes)
        return from_numpy(codes)

    def _note_places(self, batch: pa.RecordBatch, codes: np.ndarray[Any, Any]) -> None:
        """Note the own places that collectives name; a message names its peer's place, a broadcast its root's."""
        place, present = _numbers(batch.column("group_rank"))
        names = batch.column("collective")
        known = names.dictionary.to_pylist() if pa.types.is_dictionary(names.type) else []
        own = [i for i, name in enumerate(known) if name and OWN_PLACE.search(name)]
        if not own:
            return
        rows = present & (codes >= 0) & np.isin(null_as(names.indices, -1), own)
        code, at = codes[rows], place[rows]
        first = numbered_rows(code, at)[0]
        for number, its in zip(code[first].tolist(), at[first].tolist(), strict=True):
            self.places.setdefault(number, set()).add(its)


def _numbers(column: pa.Array) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    present = to_numpy(column.is_valid())
    values = column.indices if pa.types.is_dictionary(column.type) else column
    return null_as(values, -1), present


def listed_groups(info: Any) -> list[ListedGroup]:
    """Return the groups of `distributedInfo` that list their members; malformed entries are passed over."""
    config = info.get("pg_config") if isinstance(info, dict) else None
    entries = list(config.values()) if isinstance(config, dict) else config
    groups = []
    for entry in entries if isinstance(entries, list) else []:
        ranks = _members(entry.get("ranks")) if isinstance(entry, dict) else None
        world = info.get("world_size")
        if not ranks and isinstance(entry, dict) and entry.get("pg_desc") == "default_pg" and _count(world):
            ranks = _all_ranks(world)  # an empty list there means the world
        if ranks:
            name = next((entry[k] for k in ("pg_name", "uid", "pg_id") if entry.get(k) is not None), None)
            groups.append(ListedGroup(_word(name), _word(entry.get("pg_desc")), ranks))
    return groups


@lru_cache(1)
def _all_ranks(world: int) -> tuple[int, ...]:
    """Return all ranks of a job: each of its files names them."""
    return tuple(range(world))


@lru_cache(256)
def _ascending(ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Return the members of a group in order, each once; files of one job list the same ones."""
    return tuple(sorted(set(ranks)))


def _word(value: Any) -> str | None:
    """Return a text or a whole number as text; None for any other value, such as NaN or a list."""
    return str(value) if type(value) in {str, int} else None


def _count(value: Any) -> bool:
    return type(value) is int and 0 < value <= MAX_RANKS


def _members(value: Any) -> tuple[int, ...] | None:
    if isinstance(value, str):
        value = [int(v) for v in re.findall(r"\d{1,9}", value)] if "..." not in value else None
    if not isinstance(value, list) or len(value) > MAX_RANKS:
        return None
    # 16 384 files of one job list 16 384 ranks each: types and bounds are looked at by built-ins
    if set(map(type, value)) - {int} or not 0 <= min(value, default=0) <= max(value, default=0) < MAX_RANKS:
        return None
    return tuple(value)


def members_of(said: Membership, listed: list[ListedGroup]) -> tuple[int, ...] | None:
    """Return the members of the group that an event names, in the order written; None where that would be a guess."""
    text = said.pg_ranks or ""
    prefix = tuple(int(v) for v in re.findall(r"\d{1,9}", text))
    if max(prefix, default=0) >= MAX_RANKS:
        return None
    if prefix and "..." not in text and said.group_size in (None, len(prefix)):
        return prefix
    size, start, stride = said.group_size, said.rank_start, said.rank_stride
    if size is not None and 0 < size <= MAX_RANKS and start is not None and start >= 0:
        step = 1 if size == 1 else stride
        if step is not None and step > 0 and start + (size - 1) * step < MAX_RANKS:
            strided = tuple(range(start, start + size * step, step))
            if strided[: len(prefix)] == prefix:
                return strided
    # torch 2.11 writes `[]` and the size 1 for a `wait` of any group: without members or a start both are defaults.
    sized = None if text.strip("[ ]") == "" != text and start is None else size
    found = {
        g.ranks
        for g in listed
        if g.name == said.name and sized in (None, len(g.ranks)) and g.ranks[: len(prefix)] == prefix
    }
    return next(iter(found)) if len(found) == 1 and said.name is not None else None


@dataclass
class FileGroups:
    """Process groups of one file, numbered in the order met: names and descriptions by sorted members."""

    listed: list[ListedGroup]
    found: dict[tuple[int, ...], tuple[set[str], set[str]]] = field(default_factory=dict)

    def number(self, ranks: tuple[int, ...], name: str | None, desc: str | None) -> int:
        """Return the number of the group with these members, in any order, and note its name and description."""
        key = _ascending(ranks)
        names, descs = self.found.setdefault(key, (set(), set()))
        names.update({name} if name else ())
        descs.update({desc} if desc else ())
        return list(self.found).index(key)

    def resolve(self, codes: MembershipCodes, issues: Counter[str]) -> pa.Array:
        """Return the group number of every membership code, int32 of shape (codes,); null where it is unknown."""
        for group in self.listed:
            self.number(group.ranks, group.name, group.desc)
        numbers: list[int | None] = []
        for said, code in codes.known.items():
            ranks = members_of(said, self.listed)
            if ranks is None and said.names_a_group:
                issues["group_members_unknown"] += codes.counts[code]
            numbers.append(None if ranks is None else self.number(ranks, said.name, said.pg_desc))
        return from_ints(numbers, np.int32)

    def own_rank(self, codes: MembershipCodes, named: int | None) -> int | None:
        """Return the only rank that all groups of a file's events share; `named` where their members allow it.

        Places decide only where they do not: not every writer fills places in.
        """
        members = [set(ranks) for said in codes.known if (ranks := members_of(said, self.listed)) is not None]
        if named is not None and all(named in ranks for ranks in members):
            return named
        fitting: set[int] | None = None
        for said, code in codes.known.items():
            ranks = members_of(said, self.listed)
            if ranks is None:
                continue
            places = codes.places.get(code, set())
            mine = {ranks[at] for at in places if at < len(ranks)} if len(places) == 1 else set(ranks)
            fitting = mine if fitting is None else fitting & mine
        return next(iter(fitting)) if fitting is not None and len(fitting) == 1 else None

    def table(self) -> tuple[FileGroup, ...]:
        """Return all groups, by number."""
        return tuple(FileGroup(r, tuple(sorted(n)), tuple(sorted(d))) for r, (n, d) in self.found.items())
