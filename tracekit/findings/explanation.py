"""The working behind an answer of `tracekit slowrank`: hypotheses, gaps of evidence, the rule; times in ms a step."""

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["named", "candidate", "below the threshold", "not proven", "not significant", "not first"]
"""What became of a hypothesis: the answer blames it, names it as a candidate, or why it does neither."""


@dataclass(frozen=True)
class Considered:
    """One hypothesis: what may be slow, how significant that is, and what the step would save without it.

    kind: `rank`, `ranks` (several at once), `stage`, `link`, `stalls in turn`, `slow in turn`, `uneven data`,
    `ranks without a trace`. significance: standard errors, `limit` what they must exceed; None where another test
    decides. low_ms ≤ likely_ms ≤ high_ms: what the step saves without it; the ends differ by unmatched waits and the
    model's error.
    """

    kind: str
    subject: str
    ranks: tuple[int, ...]
    longer_ms: float | None
    significance: float | None
    limit: float | None
    low_ms: float
    likely_ms: float
    high_ms: float
    outcome: Outcome


@dataclass(frozen=True)
class EvidenceGap:
    """What the evidence does not show: how much it could hide, at most, and what to do about it."""

    what: str
    could_hide_ms: float
    remedy: str


@dataclass(frozen=True)
class Explanation:
    """All hypotheses, the dearest first, all gaps, the widest first, the threshold of the verdict, and the rule."""

    considered: tuple[Considered, ...]
    gaps: tuple[EvidenceGap, ...]
    threshold_ms: float
    rule: str
