"""Marks the answers of `tracekit slowrank` against the truth of generated cases."""

import tempfile
import time
import traceback
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.generator import Case, Truth, generate
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.errors import TracekitError
from tracekit.findings import SlowRankFinding
from tracekit.ingest import load

OUTCOMES = (
    "right",
    "inconclusive",
    "wrong_rank",
    "wrong_verdict",
    "missed",
    "false_alarm",
    "refused",
    "crashed",
)


@dataclass
class Mark:
    """The outcome of one case. `answer` and `truth` are texts for a reader; rates come from the other fields."""

    seed: int
    kind: str
    variant: str
    outcome: str
    cause_right: bool
    world: int
    slowdown: float
    seconds: float
    truth: str
    answer: str
    what_if: float = float("nan")  # the slowdown that the answer claims
    detail: dict[str, object] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def judge(truth: Truth, finding: SlowRankFinding) -> str:
    """The outcome in the terms of `tracekit.slowrank/1`: the suspect with most time lost is the answer."""
    if finding.verdict == "inconclusive":
        return "inconclusive"
    if truth.verdict == "healthy":
        return "right" if finding.verdict == "healthy" else "false_alarm"
    if finding.verdict == "healthy":
        return "missed"
    first = finding.suspects[0].rank if finding.suspects else None
    if first is not None and first not in truth.suspects:
        return "wrong_rank"
    named = (first is not None) == bool(truth.suspects)
    return "right" if finding.verdict == truth.verdict and named else "wrong_verdict"


def answer_case(case: Case) -> SlowRankFinding:
    """The finding of the case, written to a folder of its own and read from there."""
    with tempfile.TemporaryDirectory(prefix="generated-") as folder:
        case.write(Path(folder))
        return analyse(load([folder]), mesh=None, order=None, steps=None)


def describe(truth: Truth) -> str:
    sizes = ",".join(f"{axis}{truth.sizes[axis]}" for axis in truth.order)
    who = sorted(truth.suspects)
    shown = f"{who[:8]}{'…' if len(who) > 8 else ''}"
    return f"{truth.verdict}/{truth.cause} {shown} {sizes} x{truth.slowdown:.3f} {truth.variant}".rstrip()


def brief(finding: SlowRankFinding) -> str:
    who = [s.rank for s in finding.suspects]
    path = " ".join(f"{level.dim}{level.index}:{level.lag_ms:.1f}" for level in finding.path)
    shown = f"{who[:8]}{'…' if len(who) > 8 else ''}"
    what = finding.what_if.slowdown
    return f"{finding.verdict}/{finding.cause} {shown} [{path}] what_if x{what:.3f}: {finding.reason}"


def mark(seed: int, **overrides: object) -> Mark:
    """The mark of the case of `seed`, generated and analysed; tracekit's own errors count as refusals."""
    case = generate(seed, **overrides)
    truth, began = case.truth, time.perf_counter()
    cause_right, claimed, detail = False, float("nan"), {}
    try:
        finding = answer_case(case)
    except TracekitError as error:
        outcome, answer = "refused", f"{type(error).__name__}: {error}"
    except Exception as error:  # noqa: BLE001 (one crash must not lose the other cases; the table shows it)
        outcome, answer = "crashed", "".join(traceback.format_exception(error, limit=-3))
    else:
        outcome, answer = judge(truth, finding), brief(finding)
        cause_right = finding.cause == truth.cause
        claimed = finding.what_if.slowdown
        detail = {
            "order": list(finding.mesh.order),
            "sizes": finding.mesh.sizes,
            "suspects": [s.rank for s in finding.suspects],
            "confidence": [s.confidence for s in finding.suspects],
        }
    return Mark(
        seed=seed,
        kind=truth.kind,
        variant=truth.variant,
        outcome=outcome,
        cause_right=cause_right,
        world=case.job.mesh.world,
        slowdown=truth.slowdown,
        seconds=time.perf_counter() - began,
        truth=describe(truth),
        answer=answer,
        what_if=claimed,
        detail=detail,
    )


def mark_planned(job: tuple[int, str]) -> Mark:
    """`mark` of a (seed, kind), for a pool of processes."""
    return mark(job[0], kind=job[1])


def table(marks: list[Mark]) -> str:
    """A table of outcomes by kind of fault, with the seeds that were not answered right."""
    head = (
        f"{'kind':<16}{'cases':>6}"
        + "".join(f"{o.replace('_', ' '):>14}" for o in OUTCOMES)
        + f"{'cause right':>13}"
    )
    lines = [head]
    for kind in [*dict.fromkeys(sorted(m.kind for m in marks)), "all"]:
        mine = [m for m in marks if kind in (m.kind, "all")]
        count = Counter(m.outcome for m in mine)
        causes = sum(m.cause_right for m in mine if m.outcome == "right")
        failing = " ".join(str(m.seed) for m in mine if m.outcome != "right") if kind != "all" else ""
        row = f"{kind:<16}{len(mine):>6}" + "".join(f"{count[o] or '·':>14}" for o in OUTCOMES)
        lines.append(f"{row}{causes:>13}  {failing}".rstrip())
    return "\n".join(lines)


def rates(marks: list[Mark]) -> dict[str, float | int]:
    """Shares of right answers among faults that cost at least 10 % of the step, and of alarms among healthy cases.

    The error of a price is that of the claimed excess of the step, as a share of the true excess.
    """
    faulty = [m for m in marks if not m.kind.startswith("healthy") and m.slowdown >= 1.10]
    healthy = [m for m in marks if m.kind.startswith("healthy")]
    right = sum(m.outcome == "right" for m in faulty)
    alarms = sum(m.outcome == "false_alarm" for m in healthy)
    errors = sorted(abs((m.what_if - 1) / (m.slowdown - 1) - 1) for m in faulty if m.outcome == "right")
    return {
        "faulty": len(faulty),
        "top1": right / len(faulty) if faulty else float("nan"),
        "blamed_innocents": sum(m.outcome == "wrong_rank" for m in faulty),
        "healthy": len(healthy),
        "false_alarms": alarms / len(healthy) if healthy else float("nan"),
        "price_error_median": errors[len(errors) // 2] if errors else float("nan"),
        "price_error_p90": errors[len(errors) * 9 // 10] if errors else float("nan"),
    }
