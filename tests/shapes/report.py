"""Tables of outcomes."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from tests.shapes.score import NO_EFFECT, OPEN, RIGHT, SERIOUS, WORDS, Outcome, names_others


def tables(outcomes: Sequence[Outcome]) -> str:
    """All tables as text."""
    serious = [o for o in outcomes if o.slowdown >= SERIOUS]
    idle = [o for o in outcomes if o.slowdown < NO_EFFECT]
    parts = [
        summary("all", outcomes),
        summary(f"slower by {SERIOUS:.0%} or more", serious),
        summary(f"slower by less than {NO_EFFECT:.0%}", idle),
        table("fault", outcomes, lambda o: o.fault if o.slowdown >= NO_EFFECT else f"{o.fault}, no effect"),
        table("shape", outcomes, lambda o: o.shape),
    ]
    return "\n\n".join(parts)


def summary(title: str, outcomes: Sequence[Outcome]) -> str:
    """Some cases in a few lines."""
    lines = [f"{title}: {len(outcomes)} cases"]
    for name, words in (("tracekit", [o.result for o in outcomes]), ("vote", [o.voted for o in outcomes])):
        count = Counter(words)
        lines.append(f"  {name:9}" + "  ".join(f"{word} {count[word]}" for word in WORDS if count[word]))
    undecided = [o for o in outcomes if o.result == OPEN and o.culprits and o.slowdown >= NO_EFFECT]
    if undecided:
        first = sum(bool(set(o.candidates[:1]) & set(o.culprits)) for o in undecided)
        lines.append(f"  open with a culprit: {len(undecided)}, first among the candidates in {first}")
    stalled = sum(o.result == RIGHT and o.verdict == "inconclusive" for o in outcomes)
    if stalled:
        lines.append(
            f"  right although open: one stall, its culprit first, or no culprit recorded: {stalled}"
        )
    if others := sum(map(names_others, outcomes)):
        lines.append(f"  right, and an innocent rank is named as well: {others}")
    causes = [o.cause_right for o in outcomes if o.cause_right is not None]
    if causes:
        lines.append(f"  cause right in {sum(causes)} of {len(causes)}")
    return "\n".join([*lines, *prices(outcomes)])


def prices(outcomes: Sequence[Outcome]) -> list[str]:
    """How far prices are off, in percentage points."""
    errors = sorted((100 * o.price_error for o in outcomes if o.price_error is not None), key=abs)
    if not errors:
        return []
    middle, most = abs(errors[len(errors) // 2]), abs(errors[int(len(errors) * 0.9)])
    line = f"  price error, points: p50 {middle:.1f}, p90 {most:.1f}, worst {errors[-1]:+.1f}"
    return [f"{line}, mean {sum(errors) / len(errors):+.1f} of {len(errors)}"]


def table(title: str, outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> str:
    """A table by one property; its last columns are the vote's right answers and the median price error."""
    by: dict[str, list[Outcome]] = defaultdict(list)
    for outcome in outcomes:
        by[key(outcome)].append(outcome)
    shown = [word for word in WORDS if any(o.result == word for o in outcomes)]
    heads = "".join(f"{word:>{width(word)}}" for word in shown)
    lines = [f"{title:26}{'cases':>6}{heads}{'vote right':>12}{'price p50':>11}"]
    for name, some in sorted(by.items()):
        count = Counter(o.result for o in some)
        cells = "".join(f"{count[word] or '.':>{width(word)}}" for word in shown)
        errors = sorted(abs(o.price_error) for o in some if o.price_error is not None)
        price = f"{100 * errors[len(errors) // 2]:.1f}" if errors else "."
        votes = sum(o.voted == RIGHT for o in some)
        lines.append(f"{name:26}{len(some):>6}{cells}{votes:>12}{price:>11}")
    return "\n".join(lines)


def width(word: str) -> int:
    """The width of a column."""
    return max(8, len(word) + 2)


def told(outcome: Outcome) -> str:
    """A case in one line."""
    price = "-" if outcome.priced is None else f"{outcome.priced:.3f}"
    return (
        f"seed {outcome.seed}: {outcome.shape}, {outcome.world} ranks, {outcome.fault} {list(outcome.culprits)} "
        f"{outcome.slowdown:.3f} -> {outcome.result}: {outcome.verdict or outcome.error} {outcome.cause} "
        f"{list(outcome.suspects)} {price} candidates {list(outcome.candidates)[:4]}; vote {outcome.voted}"
    )
