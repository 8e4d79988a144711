"""Tables of outcomes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from tests.hang_shapes.score import WORDS, Outcome


def tables(outcomes: Sequence[Outcome]) -> str:
    """All tables as text."""
    count = Counter(outcome.result for outcome in outcomes)
    kinds = [outcome.kind_right for outcome in outcomes if outcome.kind_right is not None]
    lines = [
        f"{len(outcomes)} cases: " + ", ".join(f"{word} {count[word]}" for word in WORDS),
        f"kind right in {sum(kinds)} of {len(kinds)}",
        narrowing(outcomes),
    ]
    by_cause = table("cause", outcomes, lambda outcome: outcome.cause)
    return "\n\n".join(["\n".join(lines), by_cause, table("shape", outcomes, lambda outcome: outcome.shape)])


def narrowing(outcomes: Sequence[Outcome]) -> str:
    """How many open answers list candidates, the culprit among them, and how many of how many ranks."""
    told = [outcome for outcome in outcomes if outcome.narrowed is not None]
    sizes = sorted((len(outcome.candidates), outcome.world) for outcome in told)
    middle = "{} of {} ranks".format(*sizes[len(sizes) // 2]) if sizes else "none"
    found = sum(outcome.narrowed is True for outcome in told)
    return f"candidates in {len(told)} open answers, the culprit among them in {found}; the median: {middle}"


def table(title: str, outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> str:
    """A table by one property."""
    by: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by[key(outcome)].append(outcome)
    heads = "".join(f"{word:>{len(word) + 2}}" for word in WORDS)
    lines = [f"{title:18}{'cases':>6}{heads}"]
    for name, some in sorted(by.items()):
        count = Counter(outcome.result for outcome in some)
        cells = "".join(f"{count[word] or '.':>{len(word) + 2}}" for word in WORDS)
        lines.append(f"{name:18}{len(some):>6}{cells}")
    return "\n".join(lines)


def told(outcome: Outcome) -> str:
    """A case in a few words."""
    return (
        f"seed {outcome.seed}: {outcome.shape}, {outcome.world} ranks, {outcome.cause} {list(outcome.culprits)[:8]} -> "
        f"{outcome.result}: {outcome.verdict or outcome.error} {list(outcome.named)[:8]} "
        f"{sorted(set(outcome.named_kinds))} candidates {list(outcome.candidates)[:8]} ({len(outcome.candidates)}) "
        f"{outcome.reason[:300]}"
    )
