"""A stuck job with all its evidence, and the answers that a witness may give. Read by every module of this room."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from tracekit.analysis.hang.describe import culprits_of, first_group, sentence
from tracekit.analysis.hang.program_order import CallId, first_lacking
from tracekit.analysis.hang.rules.rule import Accusation
from tracekit.analysis.hang.scene import Scene
from tracekit.evidence.as_dumps import Composed
from tracekit.evidence.bundle import Bundle
from tracekit.findings.hang import CallRef, Culprit, CulpritKind, GroupRef, HangFinding

NOWHERE = GroupRef("", "", None, ())
"""Stands for the group of a rank that made no call."""


@dataclass(frozen=True)
class Case:
    """The evidence, what the rules saw of it, and how the groups were put together."""

    bundle: Bundle
    composed: Composed
    scene: Scene

    @property
    def world(self) -> set[int]:
        """Return the ranks of the job, as far as anything tells them."""
        return set(self.scene.world)

    @property
    def ranks(self) -> set[int]:
        """Return the ranks with any evidence that was read."""
        calling = {rank for rank, kinds in self.composed.sources.items() if "calls" in kinds}
        return self.bundle.ranks | calling

    def waits(self, rank: int) -> bool:
        """Return whether a rank is known to wait in a call of its own."""
        return rank in self.scene.graph.stuck


class Named(NamedTuple):
    """Ranks to name: how each failed, and, where it is known, its last frames."""

    kind: CulpritKind
    how: Mapping[int, str]
    stacks: Mapping[int, tuple[str, ...]] = {}
    hosts: Mapping[int, str] = {}


def accuse(case: Case, finding: HangFinding, named: Named) -> HangFinding:
    """Return the finding with these ranks as its culprits, each at the first call in which others wait for it."""
    accusations: dict[int, Accusation] = {}
    bare: list[Culprit] = []
    for rank, how in sorted(named.how.items()):
        call = _lacked(case.scene, rank)
        if call is None:
            bare.append(
                Culprit(rank, None, named.kind, NOWHERE, CallRef(None, 0, None, None), None, 0, None, how=how)
            )
        else:
            accusations[rank] = Accusation(named.kind, call.group, call.seq, how=how)
    placed = culprits_of(case.scene, accusations)
    culprits = tuple(
        replace(c, stack=named.stacks.get(c.rank, c.stack), host=c.host or named.hosts.get(c.rank))
        for c in sorted((*placed, *bare), key=lambda c: c.rank)
    )
    return replace(
        finding,
        verdict="hang",
        reason=sentence(case.scene, culprits),
        culprits=culprits,
        first_group=first_group(case.scene, placed),
        victims=tuple(sorted(case.scene.graph.stuck - named.how.keys())),
        candidates=(),
        to_decide=None,
        open_calls=(),
        waits=(),
    )


def leave_open(
    finding: HangFinding, reason: str, candidates: Iterable[int] = (), to_decide: str | None = None
) -> HangFinding:
    """Return the finding without culprits, for this reason."""
    return replace(
        finding,
        verdict="inconclusive",
        reason=reason,
        culprits=(),
        first_group=None,
        victims=(),
        candidates=tuple(sorted(set(candidates))),
        to_decide=to_decide,
    )


def note(finding: HangFinding, *notes: str) -> HangFinding:
    """Return the finding with more notes."""
    return replace(finding, notes=(*finding.notes, *notes))


def _lacked(scene: Scene, rank: int) -> CallId | None:
    """Return the first call in which others wait for a rank; None where they wait in none."""
    calls = [
        CallId(call.group, call.seq)
        for call in scene.graph.pending
        if rank in {*call.behind, *call.missing, *call.unknown}
    ]
    return first_lacking(scene, rank, calls) if calls else None
