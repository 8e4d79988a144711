"""A rule and its result: culprits with the call where each failed, and the doubts that are left.

A rule changes nothing. It looks at the scene and at the results of the rules before it, and returns a new `Found`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from tracekit.analysis.hang.agreement import Version
from tracekit.analysis.hang.scene import Scene
from tracekit.dumps.calls import Signature
from tracekit.findings.hang import CulpritKind

Place = tuple[int, int]
"""Number of a group and sequence number of a call in it."""


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One call that members made in several versions."""

    group: int
    seq: int
    sides: Mapping[Version, list[int]]
    """Ranks by the version that they made."""
    odd: list[int]
    """Ranks with a wrong version; empty if the right side is unknown."""
    skipped: bool
    """Whether the odd ranks left a call out, no round of a loop, and make those behind it under numbers too low."""
    expected: Signature | None
    calls: Mapping[int, Signature] = field(default_factory=dict)
    """The call of either end by rank, for a send and its receive."""


@dataclass(frozen=True, slots=True)
class Accusation:
    """How a rank failed, and in which call."""

    kind: CulpritKind
    group: int
    seq: int
    mismatch: Mismatch | None = None
    call: Signature | None = None
    """The culprit's own send or receive, where that is the call."""
    how: str | None = None
    """What it did, where the kind alone says it badly: the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Found:
    """The result of one rule, or of several together."""

    culprits: Mapping[int, Accusation] = field(default_factory=dict)
    """By rank."""
    excused: frozenset[int] = frozenset()
    """Ranks that wait for a reason already found: rules about a stalled device or host must not name them."""
    disputed: frozenset[Place] = frozenset()
    """Calls that members made differently: they may end on one side only, and no device is at fault then."""
    doubts: tuple[str, ...] = ()
    """Reasons why no culprit can be named, the strongest first."""
    notes: tuple[str, ...] = ()
    """Assumptions on which a culprit rests."""
    candidates: frozenset[int] = frozenset()
    """Ranks with the culprit among them, if the first doubt is right; empty if it names none."""
    decide: str | None = None
    """The evidence that would decide between candidates, if that is not a matter of stacks or dumps."""
    open: tuple[Mismatch, ...] = ()
    """Calls in several versions without evidence for the right one."""

    def and_then(self, later: "Found") -> "Found":
        """Return both together; for a rank that both accuse, the accusation of the earlier rule counts."""
        return Found(
            {**later.culprits, **self.culprits},
            self.excused | later.excused,
            self.disputed | later.disputed,
            self.doubts + later.doubts,
            self.notes + later.notes,
            self.candidates if self.doubts else later.candidates,
            self.decide if self.doubts else later.decide,
            self.open + later.open,
        )


class When(Enum):
    """When a rule is asked."""

    ALWAYS = "always"
    NO_CULPRIT = "no rule before it named a culprit"
    NOTHING = "no rule before it named a culprit or left a doubt"

    def holds(self, known: Found) -> bool:
        """Return whether a rule of this kind applies after the rules that found `known`."""
        if self is When.ALWAYS:
            return True
        return not known.culprits and (self is When.NO_CULPRIT or not known.doubts)


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason to name a culprit; the docstring of `find` lists the signs it looks for and the ranks it excuses."""

    name: str
    when: When
    find: Callable[[Scene, Found], Found]
