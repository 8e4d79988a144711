"""The slow-rank finding as a few lines of text: the verdict, the reason, the cost, and the next step."""

from collections.abc import Sequence

from tracekit.causes import CAUSES, MECHANISMS
from tracekit.findings import Cure, PathLevel, SlowRankFinding, Suspect
from tracekit.findings.slowrank import CauseShare, Considered, Explanation
from tracekit.report.shared_text import (
    Line,
    coverage_lines,
    laid_out,
    mesh_line,
    numbers,
    quality_lines,
    ranks_line,
    rejected_lines,
)
from tracekit.text import plain
from tracekit.thresholds.report import MOSTLY_THEIRS, ROWS_SHOWN, TIGHT_INTERVAL

_TITLES = {
    "healthy": "HEALTHY",
    "slow_rank": "SLOW RANK",
    "slow_link": "SLOW LINK",
    "imbalance": "IMBALANCE",
    "inconclusive": "INCONCLUSIVE",
}

_PAGE = "docs/causes.md"
"""The page with a section for each cause."""


def slowrank_text(finding: SlowRankFinding, *, verbose: bool = False) -> str:
    """Return the finding in lines of `label  text`; `verbose` adds all evidence, quality rows and assumptions."""
    return laid_out(slowrank_lines(finding, verbose=verbose))


def slowrank_lines(finding: SlowRankFinding, *, verbose: bool = False) -> list[Line]:
    """Return the finding as pairs of label and text, the verdict first, for text and Markdown."""
    lines: list[Line] = [_headline(finding), ("why", finding.reason)]
    if finding.cause and finding.verdict != "inconclusive":
        lines.append(("cause", _cause(finding)))
    if finding.suspects and finding.suspects[0].mechanisms:
        lines.append(("mechanism", _mechanism(finding.suspects[0])))
    for number, suspect in enumerate(finding.suspects):
        if number == 0 or verbose:
            lines.extend(
                ("evidence" if number == 0 else f"rank {suspect.rank}", t) for t in _evidence(suspect)
            )
    if finding.path:
        lines.append(("path", " → ".join(_level(p) for p in finding.path)))
    if len(finding.suspects) > 1:
        lines.extend(_table(finding.suspects, verbose=verbose))
    if finding.verdict not in ("healthy", "inconclusive"):
        lines.append(("what if", _what_if(finding)))
    lines.extend(("cure", _cure(c)) for c in finding.cures)
    lines.extend(
        ("candidate", f"{_who(s)}: {_between(s)}, {'cause unknown' if s.cause == 'unknown' else s.cause}")
        for s in _few(finding.candidates, verbose=verbose)
    )
    lines.extend(_left_out("candidate", finding.candidates, verbose=verbose))
    if finding.to_decide:
        lines.append(("to decide", finding.to_decide))
    lines.append(("steps", f"{numbers(finding.steps.analysed)}; median {finding.steps.median_ms:.1f} ms"))
    lines.append(("mesh", mesh_line(finding.mesh)))
    lines.append(("ranks", ranks_line(finding.ranks)))
    lines.extend(coverage_lines(finding.coverage, verbose=verbose))
    lines.extend(rejected_lines(finding.ranks, verbose=verbose))
    lines.extend(quality_lines(finding.quality, verbose=verbose))
    if verbose:
        lines.extend(_expert_waits(finding))
        lines.extend(("note", plain(n)) for n in finding.notes)
    if finding.explanation is not None:
        lines.extend(explanation_lines(finding.explanation))
    return [*lines, *_next_lines(finding)]


def _next_lines(finding: SlowRankFinding) -> list[Line]:
    """What to do, and the sections of the page of causes that say more."""
    lines: list[Line] = []
    if finding.cause and finding.verdict not in ("healthy", "inconclusive"):
        lines.append(("next", next_step(finding)))
    if sections := ", ".join(f"{_PAGE}#{name}" for name in _causes_named(finding)):
        lines.append(("see", f"{sections}: what it looks like, what excludes it, what to do"))
    return lines


def _causes_named(finding: SlowRankFinding) -> list[str]:
    """The causes that the answer names, each once: the verdict's or its rivals; those of candidates if it is open."""
    if finding.verdict == "inconclusive":
        return [n for n in dict.fromkeys(c.cause for c in finding.candidates) if n != "unknown"]
    if finding.verdict == "healthy" or not finding.cause:
        return []
    return [c.name for c in _rivals(finding)] or [finding.cause]


def _expert_waits(finding: SlowRankFinding) -> list[Line]:
    """A row of the matrix of waits of experts a line; none for a group that does not fit a screen."""
    waits = finding.expert_waits
    if waits is None or len(waits.ranks) > ROWS_SHOWN:
        return []
    rows = zip(waits.ranks, waits.ms, strict=True)
    return [("experts", f"rank {', '.join(map(str, waits.ranks))} wait in all-to-alls, ms a step")] + [
        ("experts", f"for rank {rank}: {', '.join(f'{value:.1f}' for value in row)}") for rank, row in rows
    ]


def next_step(finding: SlowRankFinding) -> str:
    """Return what to do about the first suspect: by its mechanism where one is sure, else by the cause."""
    mechanism = finding.suspects[0].mechanism if finding.suspects else None
    if mechanism is not None:
        return MECHANISMS[mechanism.name].next_step
    rivals = _rivals(finding)
    if len(rivals) < 2:
        one = finding.verdict != "imbalance" or bool(finding.suspects)
        return CAUSES[finding.cause or "unknown"].step_on(gpu=finding.on_gpu, one=one) + _to_decide(finding)
    steps = "; ".join(f"for {c.name}, {CAUSES[c.name].step_on(gpu=finding.on_gpu)}" for c in rivals)
    return f"{steps}; tracekit next TRACES prints tests that separate device, host and link"


def _to_decide(finding: SlowRankFinding) -> str:
    """What to record to decide between the mechanisms of the first suspect, where its pauses lack a span."""
    listed = finding.suspects[0].mechanisms if finding.suspects else ()
    recorded = [f"for {m.name}, {what}" for m in listed if (what := MECHANISMS[m.name].decided_by)]
    return f"; to decide, record {'; '.join(recorded)}" if recorded else ""


def _rivals(finding: SlowRankFinding) -> tuple[CauseShare, ...]:
    """The causes that explain most of the first suspect's excess where none explains enough to be named."""
    return finding.suspects[0].causes if finding.suspects and finding.cause == "unknown" else ()


def _cause(finding: SlowRankFinding) -> str:
    """The cause and its meaning; where none is named, the causes that explain most, and what excludes each."""
    if rivals := _rivals(finding):
        parts = "; or ".join(
            f"{c.name} ({c.share:.0%} of the excess): {entry.meaning}, excluded by {entry.excluded_by}"
            for c, entry in ((c, CAUSES[c.name]) for c in rivals)
        )
        return f"unknown: not decided: {parts}"
    return f"{finding.cause}: {CAUSES[finding.cause or 'unknown'].meaning}"


def _mechanism(suspect: Suspect) -> str:
    """The mechanism that is sure with what was measured; else the two that explain most, with their shares."""
    sure = suspect.mechanism
    if sure is not None:
        return f"{sure.name}: {plain(sure.detail)} ({sure.share:.0%} of the excess)"
    parts = "; or ".join(
        f"{m.name} ({m.share:.0%} of the excess): {plain(m.detail)}" for m in suspect.mechanisms
    )
    return f"not decided: {parts}"


def explanation_lines(found: Explanation) -> list[Line]:
    """Return each hypothesis with its price and outcome, each gap with its remedy, and the rule, as label and text."""
    lines: list[Line] = [("considered", _considered(c)) for c in found.considered]
    lines += [
        ("gap", f"{g.what}: could hide {g.could_hide_ms:.2f} ms a step; {g.remedy}") for g in found.gaps
    ]
    return [*lines, ("rule", found.rule)]


def _considered(one: Considered) -> str:
    """The words on a hypothesis in one line; times in ms a step."""
    longer = "" if one.longer_ms is None else f" by {one.longer_ms:.2f} ms"
    sure = "" if one.significance is None else f", z {one.significance:.1f}"
    sure += "" if one.limit is None or one.significance is None else f" (counts from {one.limit:.1f})"
    price = f"costs {one.low_ms:.2f} to {one.high_ms:.2f} ms a step, most likely {one.likely_ms:.2f}"
    return f"{one.subject}{longer}{sure}: {price} → {one.outcome}"


def _headline(finding: SlowRankFinding) -> tuple[str, str]:
    title = _TITLES[finding.verdict]
    step = finding.what_if.step_ms
    lost = cost_of(finding)
    price = f"costs {lost:.1f} ms of {step:.1f} ms a step ({100 * lost / step if step else 0:.1f} %)"
    if finding.verdict == "healthy":
        return title, f"no rank delays the others; {step:.1f} ms a step ({_seen(finding)})"
    if finding.verdict == "inconclusive":
        return title, "no culprit is proven"
    if not finding.suspects:
        return title, f"no rank is to blame; it {price}"
    first = _who(finding.suspects[0])
    others = f" and {len(finding.suspects) - 1} more" if len(finding.suspects) > 1 else ""
    return title, f"{first}{others}: {price}"


def cost_of(finding: SlowRankFinding) -> float:
    """Return what the verdict costs, ms a step: what `what_if` saves, or the part of it that is the first suspect's."""
    return finding.suspects[0].lost_ms_per_step if _others_cured(finding) else _saved(finding)


def _saved(finding: SlowRankFinding) -> float:
    """The saving that `what_if` shows, ms a step."""
    return finding.what_if.step_ms - finding.what_if.without_suspects_ms


def _others_cured(finding: SlowRankFinding) -> bool:
    """Whether `what_if` cures more than the suspects of an imbalance: all ranks, as for an operation table."""
    named = finding.verdict == "imbalance" and finding.suspects
    return bool(named) and finding.suspects[0].lost_ms_per_step < MOSTLY_THEIRS * _saved(finding)


def _seen(finding: SlowRankFinding) -> str:
    """The evidence of a healthy answer: the ranks and steps read, and the matched share of exposed communication."""
    ranks, steps, matched = finding.ranks, finding.steps.analysed, finding.coverage.matched
    known = (
        f"{ranks.read} of {ranks.expected} ranks and {len(steps)} step{'s' if len(steps) != 1 else ''} read"
    )
    return f"{known}, {matched:.0%} of the exposed communication matched" if matched is not None else known


def _who(suspect: Suspect) -> str:
    host = f" on {plain(suspect.host)}" if suspect.host else ""
    where = ", ".join(f"{d} {i}" for d, i in suspect.coords.items())
    return f"rank {suspect.rank}{host} ({where})"


def _evidence(suspect: Suspect) -> list[str]:
    texts = []
    for row in suspect.evidence:
        peers = f", peers {row.peers_median:.2f} {row.unit}" if row.peers_median is not None else ""
        texts.append(f"{row.what}: {row.value:.2f} {row.unit}{peers}")
    return texts


def _level(level: PathLevel) -> str:
    return f"{level.dim} {level.index} (others waited {level.lag_ms:.1f} ms)"


def _cure(cure: Cure) -> str:
    """What one cure saves after those before it, and the step then."""
    named = f"rank{'s' if len(cure.ranks) > 1 else ''} {numbers(cure.ranks)}"
    between = f"{cure.saved_ms_low:.1f} to {cure.saved_ms_high:.1f}"
    return f"{cure.cause} of {named}: saves {cure.saved_ms:.1f} ms ({between}), then {cure.step_ms:.1f} ms a step"


def _table(suspects: Sequence[Suspect], *, verbose: bool) -> list[Line]:
    rows = [
        (
            "suspect",
            f"{_who(s)}: {s.lost_ms_per_step:.1f} ms a step, {s.cause}, confidence {s.confidence:.2f}",
        )
        for s in _few(suspects, verbose=verbose)
    ]
    return [*rows, *_left_out("suspect", suspects, verbose=verbose)]


def _few(suspects: Sequence[Suspect], *, verbose: bool) -> Sequence[Suspect]:
    return suspects if verbose else suspects[:ROWS_SHOWN]


def _left_out(label: str, named: Sequence[Suspect], *, verbose: bool) -> list[Line]:
    """The line on how many ranks are not shown, and which; none where all are."""
    rest = sorted(s.rank for s in named[len(_few(named, verbose=verbose)) :])
    which = f"rank{'s' if len(rest) > 1 else ''} {numbers(rest)}"
    return [(label, f"… and {len(rest)} more, {which} (--verbose lists them)")] if rest else []


def _between(suspect: Suspect) -> str:
    """The price interval of a suspect; one figure where its ends are unknown."""
    if suspect.lost_ms_low is None or suspect.lost_ms_high is None:
        return f"{suspect.lost_ms_per_step:.1f} ms a step"
    return f"{suspect.lost_ms_low:.1f} to {suspect.lost_ms_high:.1f} ms a step"


def _what_if(finding: SlowRankFinding) -> str:
    after = finding.what_if
    times = f"{after.step_ms:.1f} → {after.without_suspects_ms:.1f} ms a step"
    first = finding.suspects[0] if finding.suspects else None
    wide = first is not None and _is_wide(first)
    least = f"; rank {first.rank} costs {_between(first)}" if first is not None and wide else ""
    cure = "with typical work on all ranks" if _others_cured(finding) else "without it"
    return f"{times} {cure} (slowdown {after.slowdown:.3f}×){least}"


def _is_wide(suspect: Suspect) -> bool:
    """Whether the two ends of a suspect's price differ by more than a tight interval."""
    low, high = suspect.lost_ms_low, suspect.lost_ms_high
    return low is not None and high is not None and high > (1 + TIGHT_INTERVAL) * low
