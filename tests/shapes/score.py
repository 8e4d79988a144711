"""Compares an answer with the truth, in one word."""

from dataclasses import asdict, dataclass

from tests.shapes.case import Made
from tests.shapes.fault import CAUSES, LINKS, NEWER

NO_EFFECT = 0.01
"""Below this slowdown nobody is to blame, whatever was planted."""
REAL = 0.03
"""From this slowdown on, `healthy` is false; between the two it is a matter of taste."""
SERIOUS = 0.05
"""From this slowdown on, a culprit should be named."""
RIGHT, OPEN, NOTHING_TO_COMPARE = "right", "open", "nothing to compare with"
WRONG_RANK, WRONG_VERDICT = "wrong rank", "wrong verdict"
FALSE_HEALTHY, FALSE_ALARM = "false healthy", "false alarm"
WORDS = (
    *(
        RIGHT,
        OPEN,
        WRONG_RANK,
        WRONG_VERDICT,
        FALSE_HEALTHY,
        FALSE_ALARM,
        "refused",
        "error",
        NOTHING_TO_COMPARE,
    ),
)
"""What an answer can be; the last is a slow link of the only group, of which no other link can tell."""
UNSTEADY = ("flaky_nic",)
"""Links that are slow at times: other transfers of the same group tell it."""
OTHER_KINDS = ("slow_link", "imbalance")
"""Verdicts that blame something else than a rank."""


@dataclass
class Outcome:
    """A case, its truth, and what was answered."""

    seed: int
    shape: str
    fault: str
    world: int
    slowdown: float
    culprits: tuple[int, ...]
    once: bool = False
    """Whether the fault is a stall in one step alone."""
    sole_group: bool = False
    unrecorded: bool = False
    """Whether none of the culprits was recorded, so that an open answer is all that one can give."""
    uneven: bool = False
    verdict: str = ""
    cause: str | None = None
    suspects: tuple[int, ...] = ()
    candidates: tuple[int, ...] = ()
    priced: float | None = None
    """The slowdown that the answer tells, as a share."""
    error: str = ""
    refused: bool = False
    vote: int | None = None
    seconds: float = 0.0

    @property
    def result(self) -> str:
        """One of WORDS."""
        return judged(self)

    @property
    def voted(self) -> str:
        """One of WORDS for the vote."""
        culprits = self.culprits if self.slowdown >= NO_EFFECT else ()
        if self.vote is None:
            return FALSE_HEALTHY if culprits else RIGHT
        if not culprits:
            return FALSE_ALARM
        return RIGHT if self.vote in culprits else WRONG_RANK

    @property
    def cause_right(self) -> bool | None:
        """Whether the cause is told; None where it is not asked for."""
        if self.result != RIGHT or self.slowdown < REAL or not self.suspects:
            return None
        return self.cause == (CAUSES | NEWER)[self.fault]

    @property
    def price_error(self) -> float | None:
        """By how much the price is off, as a share; None where the truth prices another thing than the answer does.

        Uneven data are priced as well as the fault, and the truth has the fault alone.
        """
        asked = self.result == RIGHT and self.verdict not in {"healthy", "inconclusive"} and not self.uneven
        if not asked or self.priced is None or self.slowdown < REAL:
            return None
        return self.priced - self.slowdown

    def row(self) -> dict[str, object]:
        """As JSON."""
        return {**asdict(self), "result": self.result, "voted": self.voted, "price_error": self.price_error}


def begun(made: Made) -> Outcome:
    """The outcome with the truth alone."""
    case = made.case
    return Outcome(
        seed=case.seed,
        shape=case.name,
        fault=case.kind,
        world=case.world,
        slowdown=made.slowdown,
        culprits=case.culprits,
        once=case.fault is not None and case.fault.once,
        sole_group=made.groups == 1,
        unrecorded=not set(case.culprits) & set(case.recorded) and bool(case.culprits),
        uneven=case.uneven,
    )


def judged(outcome: Outcome) -> str:
    """One of WORDS."""
    if outcome.refused or outcome.error:
        return "refused" if outcome.refused else "error"
    if outcome.verdict == "inconclusive":
        led = outcome.once and set(outcome.candidates[:1]) & set(outcome.culprits)
        unknowable = outcome.unrecorded and outcome.slowdown >= NO_EFFECT
        return RIGHT if led or unknowable else OPEN
    if not outcome.culprits or outcome.slowdown < NO_EFFECT:
        return judged_innocent(outcome)
    if outcome.verdict == "healthy":
        if outcome.slowdown < REAL:
            return RIGHT
        constant = outcome.fault in LINKS and outcome.fault not in UNSTEADY
        return NOTHING_TO_COMPARE if constant and outcome.sole_group else FALSE_HEALTHY
    return judged_guilty(outcome)


def judged_innocent(outcome: Outcome) -> str:
    """The word where nobody costs anything: blame is false, but an imbalance blames nobody."""
    if outcome.verdict in {"healthy", "imbalance"}:
        return RIGHT
    return RIGHT if set(outcome.suspects[:1]) & set(outcome.culprits) else FALSE_ALARM


def judged_guilty(outcome: Outcome) -> str:
    """The word where somebody is to blame and the answer blames: the first suspect counts, of a link any.

    An imbalance that lists innocent ranks of the stage beside the culprit blames the model, not the culprit.
    """
    culprits = set(outcome.culprits)
    small = outcome.slowdown < REAL
    if outcome.verdict == "imbalance" and outcome.uneven and small:
        return RIGHT
    if outcome.fault in LINKS:
        return RIGHT if culprits & set(outcome.suspects) else WRONG_RANK
    if culprits & set(outcome.suspects[:1]):
        blurred = outcome.verdict == "imbalance" and set(outcome.suspects) - culprits
        return WRONG_VERDICT if blurred and not small else RIGHT
    if small:
        return FALSE_ALARM
    return WRONG_VERDICT if outcome.verdict in OTHER_KINDS else WRONG_RANK


def names_others(outcome: Outcome) -> bool:
    """Whether a right answer names an innocent rank as well."""
    named = outcome.verdict == "slow_rank" and outcome.result == RIGHT and outcome.slowdown >= NO_EFFECT
    return named and bool(set(outcome.suspects) - set(outcome.culprits))
