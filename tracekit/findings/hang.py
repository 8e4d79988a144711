"""The answer of `tracekit hang` as data (contract `tracekit.hang/1`).

Text and JSON come from these objects alone.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tracekit.findings.shared import Columns, MeshFinding, Quality, RankCoverage, Row, Tabular

HangVerdict = Literal["hang", "mismatch", "none", "inconclusive"]
"""A rank stopped; a rank made another call; no rank waits; or the dumps do not show which."""
CulpritKind = Literal[
    "host_stalled", "device_stalled", "mismatched_call", "missing_dump", "died", "never_joined"
]
"""How a rank failed: it never issued the call, never completed it, made another one, or left no dump; its process ended
before the others waited; or it never reached a rendezvous, a barrier or a communicator that the others wait in."""


@dataclass(frozen=True)
class GroupRef:
    """A process group; `dim` is its mesh axis (`cp_dp` for a union of two), None where that is unknown."""

    name: str
    desc: str
    dim: str | None
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class CallRef:
    """A call: a collective, a send or a receive.

    `seq` counts the calls of the group; operation, sizes and dtype are None where no dump holds the call.
    """

    op: str | None
    seq: int
    input_sizes: tuple[tuple[int, ...], ...] | None
    dtype: str | None


@dataclass(frozen=True)
class Side:
    """One version of a call and the ranks that made it.

    `stack` is that of the call, as in `Culprit`, and `place` its frame that is different from other versions.
    """

    ranks: tuple[int, ...]
    text: str
    stack: tuple[str, ...] = ()
    place: str | None = None


@dataclass(frozen=True)
class OpenCall:
    """A call of a group that members made in several versions, where the dumps do not show the right one."""

    group: GroupRef
    seq: int
    sides: tuple[Side, ...]


@dataclass(frozen=True)
class Culprit:
    """A rank that made the others wait, and the call in which it did.

    `last_enqueued` and `last_completed` are its own frontier in the group, `group_enqueued` is that of the furthest
    member; sequence numbers. Of a rank that died or never joined the group may be unknown: it has no members then, and
    the call the number 0. `stack` is that of its last recorded call ("file:line function", innermost first).
    `sides` are the versions of a mismatched call. `how` says what the rank did, where its kind alone says it badly: the
    end of a sentence that begins with the rank.
    """

    rank: int
    host: str | None
    kind: CulpritKind
    group: GroupRef
    collective: CallRef
    last_enqueued: int | None
    group_enqueued: int
    last_completed: int | None
    stack: tuple[str, ...] = ()
    sides: tuple[Side, ...] = ()
    how: str | None = None


@dataclass(frozen=True)
class GroupFrontier:
    """How far the members of one group are (sequence numbers), and which are behind; shown by --verbose."""

    group: GroupRef
    enqueued: tuple[int, int]  # least and greatest over members that are known
    completed: tuple[int, int]
    waiting: int  # members with an operation outstanding
    behind: tuple[int, ...]
    missing: tuple[int, ...]


@dataclass(frozen=True)
class LastDone:
    """The last completed collective of a rank."""

    rank: int
    group: str
    op: str | None
    seq: int


@dataclass(frozen=True)
class HangFinding(Tabular):
    """The answer of `tracekit hang`.

    `victims` are the ranks that wait and are not culprits; `first_group` is the name of the group in which waiting
    began; `notes` are assumptions of the answer. If the verdict is `inconclusive`, `candidates` are the
    ranks from which the waiting may start, as few as the dumps allow, and `to_decide` says what would decide;
    `open_calls` are the calls in dispute, and `waits` the calls in which the candidates wait first.
    """

    ranks: RankCoverage
    mesh: MeshFinding | None
    verdict: HangVerdict
    reason: str
    culprits: tuple[Culprit, ...]
    first_group: str | None
    victims: tuple[int, ...]
    quality: tuple[Quality, ...] = ()
    groups: tuple[GroupFrontier, ...] = ()
    last_done: tuple[LastDone, ...] = ()
    notes: tuple[str, ...] = ()
    candidates: tuple[int, ...] = ()
    to_decide: str | None = None
    open_calls: tuple[OpenCall, ...] = ()
    waits: tuple[Side, ...] = ()

    def columns(self) -> Columns:
        """A culprit a row, with the call in which it made the others wait."""
        words = ("host", "kind", "group", "axis", "op")
        numbers = ("seq", "last_enqueued", "group_enqueued", "last_completed")
        return {"rank": "int64", **dict.fromkeys(words, "string"), **dict.fromkeys(numbers, "int64")}

    def rows(self) -> Iterator[Row]:
        """The culprits as the answer lists them."""
        for c in self.culprits:
            call = (c.group.name, c.group.dim, c.collective.op, c.collective.seq)
            yield c.rank, c.host, c.kind, *call, c.last_enqueued, c.group_enqueued, c.last_completed

    def headline(self) -> str:
        """The verdict and why."""
        return f"{self.verdict}: {self.reason}"
