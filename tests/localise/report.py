"""Tables of outcomes."""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace

from tests.localise.score import Outcome

SERIOUS = 1.05
"""Slowdown from which a culprit should be named."""
WORDS = ("right", "inconclusive", "refused", "false_healthy", "wrong", "false_alarm", "error")


def tables(outcomes: list[Outcome]) -> str:
    """All tables as text."""
    parts = [summary(outcomes)]
    for title, key in (
        ("fault", lambda o: o.fault),
        ("severity", lambda o: o.severity),
        ("form", lambda o: o.form),
        ("subset", lambda o: o.subset),
        ("what was recorded", lambda o: o.kept),
        ("world", lambda o: f"{o.world:4}"),
    ):
        parts.append(table(title, outcomes, key))
    parts.append(by_trait(outcomes))
    return "\n\n".join(parts)


def summary(outcomes: list[Outcome]) -> str:
    """All cases in a few lines."""
    lines = [f"{len(outcomes)} cases"]
    for name, results in (
        ("tracekit", [o.result for o in outcomes]),
        ("vote", [o.vote_result for o in outcomes if o.vote_result]),
        ("HTA", [o.hta_result for o in outcomes if o.hta_result]),
    ):
        count = Counter(results)
        if results:
            lines.append(f"{name:9}" + "  ".join(f"{word} {count[word]}" for word in WORDS if count[word]))
    errors = sorted(abs(o.priced - o.priced_truth) for o in outcomes if o.priced and o.priced_truth)
    causes = [o.cause_right for o in outcomes if o.cause_right is not None]
    if causes:
        lines.append(f"cause right in {sum(causes)} of {len(causes)} right answers")
    lines += named_of_known(outcomes)
    open_cases = [o for o in outcomes if o.result == "inconclusive" and o.culprits]
    if open_cases:
        first = sum(bool(set(o.candidates[:1]) & set(o.culprits)) for o in open_cases)
        lines.append(
            f"left open {len(open_cases)} cases with a culprit; the first candidate is one in {first}"
        )
    if errors:
        lines.append(f"price error, points: {quantiles(errors)} of {len(errors)} right answers")
    return "\n".join(lines)


def named_of_known(outcomes: list[Outcome]) -> list[str]:
    """How many of the culprits that matter were named, apart from cases in which none of them left a trace."""
    serious = [o for o in outcomes if o.slowdown >= SERIOUS and o.culprits]
    known = [o for o in serious if o.kept != "no culprit recorded"]
    if not serious:
        return []
    right = sum(o.result == "right" for o in known)
    also = sum(bool(set(o.suspects) - set(o.culprits)) for o in known if o.result == "right")
    told = f"slowdown >= {SERIOUS - 1:.0%}, a culprit recorded: right {right} of {len(known)}, "
    told += f"{also} of them name another rank as well; no culprit recorded: {len(serious) - len(known)}"
    return [told]


def quantiles(errors: list[float]) -> str:
    """Median and 90th percentile in percentage points."""
    return f"p50 {100 * errors[len(errors) // 2]:.1f}, p90 {100 * errors[int(len(errors) * 0.9)]:.1f}"


def table(title: str, outcomes: list[Outcome], key: Callable[[Outcome], str]) -> str:
    """A table by one property."""
    by: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by[key(outcome)].append(outcome)
    header = (
        f"{title:28}{'cases':>6}"
        + "".join(f"{word:>15}" for word in WORDS)
        + f"{'vote right':>12}{'HTA right':>11}"
    )
    lines = [header]
    for name, some in sorted(by.items()):
        count = Counter(o.result for o in some)
        votes, htas = ([getattr(o, f"{who}_result") for o in some] for who in ("vote", "hta"))
        line = f"{name:28}{len(some):>6}" + "".join(f"{count[word] or '.':>15}" for word in WORDS)
        line += f"{votes.count('right') if any(votes) else '-':>12}{htas.count('right') if any(htas) else '-':>11}"
        lines.append(line)
    return "\n".join(lines)


def by_trait(outcomes: list[Outcome]) -> str:
    """A table by habit of the recording; a case stands in every line that fits it."""
    some = [replace(o, fault=trait) for o in outcomes for trait in o.traits]
    return table("habit", some, lambda o: o.fault)


def failures(outcomes: list[Outcome]) -> str:
    """A line for every case that is not right."""
    return "\n".join(
        f"seed {o.seed}: {o.form}, {o.mesh}, {o.fault} {list(o.culprits)} {o.slowdown:.3f} ({o.subset}) -> "
        f"{o.result}: {o.verdict or o.error} {o.cause} {list(o.suspects)} {o.priced} "
        f"candidates {list(o.candidates)[:4]}; vote {o.vote_result}"
        for o in outcomes
        if o.result != "right"
    )
