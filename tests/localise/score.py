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
    priced_truth: float | None = None
    """The slowdown that the named ranks cause in truth."""
    cause_right: bool | None = None
    traits: tuple[str, ...] = ()
    kept: str = ""
    """How many culprits were recorded: of `kept`."""
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
        traits=tuple(sorted(job.traits)),
        kept=kept(case.culprits, case.recorded),
    )


def kept(culprits: tuple[int, ...], recorded: tuple[int, ...]) -> str:
    """How many culprits were recorded, in words of a table: what left no trace cannot be named for what it did."""
    seen = set(culprits) & set(recorded)
    if not culprits:
        return "nobody to blame"
    if not seen:
        return "no culprit recorded"
    return "all culprits recorded" if len(seen) == len(culprits) else "some culprits recorded"


UNEVEN = ("experts", "hot_experts", "documents")
"""Kinds in which an imbalance is the truth, though no rank is to blame."""
CAUSES = {
    "slow_compute": {"gpu_compute"},
    "slow_host": {"cpu_launch"},
    "pauses": {"host_stall"},
    "late_data": {"dataloader"},
    "long_stage": {"stage_imbalance"},
    "slow_link": {"network"},
    "intermittent": {"gpu_compute"},
    "two": {"gpu_compute", "host_stall"},
    "decoy": {"gpu_compute"},
    "slow_node": {"gpu_compute"},
    "slow_expert": {"gpu_compute"},
    "slow_beside": {"gpu_compute"},
}


def judge(outcome: Outcome, case: Case) -> str:
    """One word for tracekit's answer: one of `report.WORDS`.

    A culprit that was not recorded may be named, or one of its tensor group, or the answer is left open; a job of
    uneven data may be called imbalanced, as long as no rank is called slow.
    """
    if outcome.error:
        return "refused" if "--mesh" in outcome.error else "error"
    named = outcome.verdict not in {"healthy", "inconclusive"} and bool(outcome.suspects)
    hidden = not set(outcome.culprits) & set(case.recorded)
    if outcome.verdict == "inconclusive":
        return "right" if hidden and outcome.culprits else "inconclusive"
    if not outcome.culprits:
        uneven = case.job.documents or case.job.experts or outcome.fault in UNEVEN
        return "false_alarm" if named and not (uneven and outcome.verdict == "imbalance") else "right"
    if not named:
        return "false_healthy" if outcome.verdict == "healthy" else "wrong"
    return "right" if outcome.suspects[0] in accepted(case) else "wrong"


def accepted(case: Case) -> set[int]:
    """Ranks that one may name: the culprits, and their tensor groups where no culprit was recorded."""
    found = set(case.culprits)
    if not found & set(case.recorded):
        found |= {peer for rank in case.culprits for peer in case.job.layout.group(rank, ("tp",))}
    return found


def judge_one(suspect: int | None, case: Case) -> str:
    """One word for a baseline's answer, by the same measure."""
    if suspect is None:
        return "false_healthy" if case.culprits else "right"
    if not case.culprits:
        return "false_alarm"
    return "right" if suspect in accepted(case) else "wrong"
