"""Puts findings into the terms of the contract: groups with axes, calls with sizes, stacks, sentences.

Only here do numbers of groups and sequence numbers become what a reader sees. Used by `hang`.
"""

from collections.abc import Sequence

from tracekit.analysis.hang.call_order import Item, first_of
from tracekit.analysis.hang.groups import Group, sizes
from tracekit.analysis.hang.mismatch import Mismatch
from tracekit.analysis.hang.wait_graph import Graph
from tracekit.dumps.dump import Signature
from tracekit.dumps.load import DumpSet
from tracekit.errors import MeshError
from tracekit.findings import MeshFinding
from tracekit.findings.hang import CallRef, Culprit, CulpritKind, GroupFrontier, GroupRef, LastDone, Side
from tracekit.mesh import GroupUse, Mesh, from_sizes, infer

_KINDS = {
    "host_stalled": "host stalled (never enqueued it)",
    "device_stalled": "device stalled (enqueued it, never completed it)",
    "mismatched_call": "mismatched call",
    "missing_dump": "left no whole dump and was not seen to enqueue it",
}


def mesh_of(
    groups: list[Group], dumps: DumpSet, sizes_: dict[str, int] | None, order: Sequence[str] | None
) -> tuple[Mesh | None, MeshFinding | None, tuple[str, ...]]:
    """Give the mesh given, else inferred; None, with the reason, where the groups do not determine one."""
    if sizes_ is not None:
        mesh = from_sizes(sizes_, order or tuple(sizes_))
        if mesh.world_size != len(dumps.world):
            raise MeshError(
                f"--mesh describes {mesh.world_size} ranks, the dumps are of {len(dumps.world)}; correct it"
            )
        return mesh, MeshFinding(tuple(mesh.order), dict(mesh.sizes), "flag"), ()
    uses = [
        GroupUse(g.ranks, (g.desc,) if g.desc else (), collectives=_uses(g), p2p=int(g.mixed))
        for g in groups
        if not g.guessed
    ]
    try:
        inferred = infer(uses, dumps.world, order)
    except MeshError as error:
        if order is not None:
            raise
        return None, None, (f"mesh unknown: {error}",)
    if inferred.flat:
        return None, None, inferred.notes
    mesh = inferred.mesh
    return mesh, MeshFinding(tuple(mesh.order), dict(mesh.sizes), "process_groups"), inferred.notes


def _uses(group: Group) -> int:
    return max((r.enqueued for r in group.rows.values()), default=0)


class Describer:
    """Names for what the analysis found."""

    def __init__(self, groups: list[Group], graph: Graph, dumps: DumpSet, mesh: Mesh | None) -> None:
        self._groups, self._graph, self._dumps, self._mesh = groups, graph, dumps, mesh

    def group(self, number: int) -> GroupRef:
        """Give the reference of a group, with its axis."""
        group = self._groups[number]
        dims = self._mesh.dims_of(group.ranks) if self._mesh is not None else None
        return GroupRef(group.name, group.desc, "_".join(dims) if dims else None, group.ranks)

    def culprit(
        self,
        rank: int,
        kind: CulpritKind,
        number: int,
        seq: int,
        mismatch: Mismatch | None,
        pair: Signature | None = None,
    ) -> Culprit:
        """One culprit with everything known of it."""
        group = self._groups[number]
        row = group.rows.get(rank)
        dump = self._dumps.dumps.get(rank)
        call = row.call(seq) if row is not None and kind in {"device_stalled", "mismatched_call"} else None
        call = pair or call or (mismatch.expected if mismatch is not None else None) or group.call(seq)
        known = row is not None and row.enqueued >= 0 and pair is None
        return Culprit(
            rank=rank,
            host=dump.host if dump is not None else None,
            kind=kind,
            group=self.group(number),
            collective=_call(call, seq),
            last_enqueued=row.enqueued if row is not None and known else None,
            group_enqueued=max([seq, *(r.enqueued for r in group.rows.values() if pair is None)]),
            last_completed=row.completed if row is not None and known else None,
            stack=dump.stack if dump is not None else (),
            sides=() if mismatch is None or kind != "mismatched_call" else self._sides(mismatch),
        )

    def _sides(self, mismatch: Mismatch) -> tuple[Side, ...]:
        group = self._groups[mismatch.group]
        sides = []
        for ranks in mismatch.sides.values():
            call = mismatch.calls.get(ranks[0]) or group.rows[ranks[0]].call(mismatch.seq)
            sides.append(Side(tuple(sorted(ranks)), _text(call)))
        if (len(sides) == 1 or mismatch.calls) and mismatch.expected is not None:
            sides.append(Side((), _text(mismatch.expected)))
        return tuple(sorted(sides, key=lambda s: (-len(s.ranks), s.ranks)))

    def first(self, culprits: tuple[Culprit, ...]) -> str | None:
        """Give the group in which waiting began: of the calls that culprits hold up, the first in the program."""
        items = [
            Item(number, culprit.collective.seq)
            for culprit in culprits
            for number, group in enumerate(self._groups)
            if group.ranks == culprit.group.ranks and group.name == culprit.group.name
        ]
        return self._groups[first_of(self._groups, items).group].name if items else None

    def sentence(self, culprits: tuple[Culprit, ...]) -> str:
        """One sentence: who, how, in which call; the next culprits counted, not told."""
        parts = []
        for kind in dict.fromkeys(c.kind for c in culprits):
            same = [c for c in culprits if c.kind == kind]
            first = same[0]
            ranks = ", ".join(_at(c) for c in same[:8]) + (
                f" and {len(same) - 8} more" if len(same) > 8 else ""
            )
            where = f"{first.group.dim or first.group.desc or 'group'} group {first.group.name}"
            op = first.collective.op or "call"
            parts.append(
                f"rank{'s' * (len(same) > 1)} {ranks}: {_KINDS[kind]}, {op} {first.collective.seq} of {where}"
            )
        stuck = len(self._graph.stuck - {c.rank for c in culprits})
        return f"{'; '.join(parts)}; {stuck} ranks wait for {'it' if len(culprits) == 1 else 'them'}"

    def frontiers(self) -> tuple[GroupFrontier, ...]:
        """List the groups that anybody waits in."""
        found: dict[int, GroupFrontier] = {}
        for hub in self._graph.hubs:
            rows = [r for r in self._groups[hub.group].rows.values() if r.enqueued >= 0]
            behind = {*hub.behind, *(found[hub.group].behind if hub.group in found else ())}
            found[hub.group] = GroupFrontier(
                self.group(hub.group),
                (min(r.enqueued for r in rows), max(r.enqueued for r in rows)),
                (min(r.completed for r in rows), max(r.completed for r in rows)),
                sum(r.waiting for r in rows),
                tuple(sorted(behind)),
                tuple(hub.missing),
            )
        return tuple(found[k] for k in sorted(found))

    def last_done(self) -> tuple[LastDone, ...]:
        """Give the last completed collective of every rank, by time of issue, else in its smallest group."""
        best: dict[int, tuple[int, int, LastDone]] = {}
        for group in self._groups:
            for row in group.rows.values():
                if row.completed <= 0:
                    continue
                call = row.call(row.completed)
                done = LastDone(row.rank, group.name, call[0] if call else None, row.completed)
                key = (row.created(row.completed) or 0, -len(group.ranks), done)
                if row.rank not in best or key[:2] > best[row.rank][:2]:
                    best[row.rank] = key
        return tuple(best[r][2] for r in sorted(best))


def _at(culprit: Culprit) -> str:
    return f"{culprit.rank}@{culprit.host}" if culprit.host else str(culprit.rank)


def _call(call: Signature | None, seq: int) -> CallRef:
    if call is None:
        return CallRef(None, seq, None, None)
    dtypes = call[3].strip("[]() ").split(",")[0].strip("'\" ")
    return CallRef(call[0].lstrip("_"), seq, sizes(call[1]), dtypes or None)


def _text(call: Signature | None) -> str:
    return (
        "unknown"
        if call is None
        else f"{call[0].lstrip('_')} in {call[1]} out {call[2]} {call[3] or call[4]}"
    )
