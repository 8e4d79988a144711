"""Compares answers with the truth."""

from dataclasses import asdict, dataclass

from tests.localise.case import Case


@dataclass
class Outcome:
    """One case, its truth, and what everybody said."""

    seed: int
    form: str
    style: str
    torch: str
    fault: str
    mesh: str
    world: int
    subset: str
    told: bool
    severity: str
    slowdown: float
    culprits: tuple[int, ...]
    verdict: str = ""
    cause: str | None = None
    suspects: tuple[int, ...] = ()
    candidates: tuple[int, ...] = ()
    priced: float | None = None
    result: str = ""
    error: str = ""
    vote: int | None = None
    vote_result: str = ""
    hta: tuple[int, ...] | None = None
    hta_result: str = ""
    seconds: float = 0.0

    def row(self) -> dict:
        """As JSON."""
        return asdict(self)


BINS = ((1.03, "< 3 %"), (1.05, "3-5 %"), (1.1, "5-10 %"), (1.25, "10-25 %"))


def severity(slowdown: float) -> str:
    """The bin of a slowdown."""
    return next((name for bound, name in BINS if slowdown < bound), "> 25 %")


def begun(case: Case) -> Outcome:
    """The outcome with the truth alone."""
    job = case.job
    return Outcome(
        seed=case.seed,
        form=case.form,
        style=job.style,
        torch=".".join(map(str, job.torch)),
        fault=case.kind,
        mesh=",".join(f"{axis}={size}" for axis, size in job.layout.public()),
        world=job.layout.world,
        subset=case.subset,
        told=case.told,
        severity="none" if not case.culprits else severity(case.slowdown),
        slowdown=round(case.slowdown, 4),
        culprits=case.culprits,
    )


def judge(outcome: Outcome, recorded: tuple[int, ...]) -> str:
    """One word for tracekit's answer: right, inconclusive, refused, false_healthy, wrong, false_alarm, error."""
    if outcome.error:
        return "refused" if "--mesh" in outcome.error else "error"
    named = outcome.verdict not in {"healthy", "inconclusive"} and bool(outcome.suspects)
    if not outcome.culprits:
        return "false_alarm" if named else "right"
    hidden = not set(outcome.culprits) & set(recorded)
    if named:
        return "right" if outcome.suspects[0] in outcome.culprits else "wrong"
    if outcome.verdict == "inconclusive":
        return "right" if hidden else "inconclusive"
    return "false_healthy"


def judge_one(suspect: int | None, culprits: tuple[int, ...]) -> str:
    """One word for a baseline's answer."""
    if suspect is None:
        return "false_healthy" if culprits else "right"
    if not culprits:
        return "false_alarm"
    return "right" if suspect in culprits else "wrong"
