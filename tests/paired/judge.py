"""One word for an answer, by the truth, in the order from worst to best."""

from dataclasses import replace
from typing import Any, Final

from tests.paired.jobs import COSTS_NOTHING, Truth

WORDS: Final = ("error", "wrong", "false alarm", "false healthy", "open", "open, culprit first", "right")
"""From worst to best; a false alarm and false health weigh the same."""
WEIGHT: Final = {word: place - (place > WORDS.index("false alarm")) for place, word in enumerate(WORDS)}


def judged(truth: Truth, answer: dict[str, Any]) -> str:
    """One of WORDS for `answer`, which is as `ask.in_short` gives it."""
    if "error" in answer:
        return "error"
    culprits = truth.culprits if truth.slowdown >= COSTS_NOTHING or truth.suite == "samples" else ()
    if answer["verdict"] == "inconclusive":
        if culprits and not truth.recorded:
            return "right"
        return "open, culprit first" if set(answer["candidates"][:1]) & set(truth.accepted) else "open"
    named = bool(answer["suspects"]) and answer["verdict"] != "healthy"
    if not culprits:
        return _of_innocent(truth, answer, named=named)
    if not named:
        return "false healthy" if answer["verdict"] == "healthy" else "wrong"
    first = answer["suspects"] if truth.link else answer["suspects"][:1]
    return "right" if set(first) & set(truth.accepted) else "wrong"


def _of_innocent(truth: Truth, answer: dict[str, Any], *, named: bool) -> str:
    """The word for a job in which no rank is to blame; a fault that costs nothing may be named all the same."""
    if not named or (truth.uneven and answer["verdict"] == "imbalance"):
        return "right"
    return "right" if set(answer["suspects"][:1]) & set(truth.accepted) else "false alarm"


def over_steps(truth: Truth, compared: list[int]) -> Truth:
    """Return `truth` with the slowdown over the `compared` steps, since the answer's price is their mean.

    Over all steps where fewer than half or only one is compared, where one is unknown, and where the compared ones cost
    less than `COSTS_NOTHING`: any interval from zero would hold that. A step that windows cut counts whole.
    """
    known = {number: times for number, *times in truth.steps}
    if len(compared) < max(2, len(known) / 2) or not known.keys() >= set(compared):
        return truth
    with_fault, without = (sum(known[n][of] for n in compared) for of in (0, 1))
    slowdown = with_fault / without
    return replace(truth, slowdown=slowdown) if slowdown >= COSTS_NOTHING else truth


def price_error(truth: Truth, answer: dict[str, Any]) -> float | None:
    """Points by which the price of the culprits misses the truth; None where the answer does not price just them."""
    if "error" in answer or not truth.culprits or set(answer["suspects"]) != set(truth.culprits):
        return None
    if truth.suite == "samples" or truth.uneven:
        return None
    return 100.0 * float(answer["slowdown"] - truth.slowdown)


def holds_truth(truth: Truth, answer: dict[str, Any]) -> bool | None:
    """Whether the interval of a single culprit's price holds the truth; None where there is no such interval."""
    if price_error(truth, answer) is None or len(answer["suspects"]) != 1:
        return None
    lost = float(answer["step_ms"]) * (1.0 - 1.0 / truth.slowdown)
    return bool(answer["low_ms"][0] <= lost <= answer["high_ms"][0])
