"""The tests behind an answer, each with its measured value and its threshold."""

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.gaps.evidence_gaps import coverage
from tracekit.analysis.slowrank.suspects import Answer
from tracekit.findings.picture import Criterion
from tracekit.thresholds.slowrank import LEAST_MATCHED, MIN_LOST_SHARE, PROVING_STEPS
from tracekit.units import ms


def criteria(case: Case, answer: Answer) -> tuple[Criterion, ...]:
    """The criteria of the decision: size, significance and price of the excess, model error, and matched share."""
    return (*_of_excess(case, answer), *_of_evidence(case))


def _of_excess(case: Case, answer: Answer) -> tuple[Criterion, ...]:
    """The criteria on the excess: its size, its significance and its price."""
    named = [
        case.steps.row(s.rank) for s in (*answer.suspects, *answer.candidates) if s.rank in case.steps.ranks
    ]
    rows = np.array(named or range(len(case.steps.ranks)), np.int64)
    which = "the ranks named" if named else "all ranks"
    step = case.step_ns
    return (
        Criterion(
            f"Own time beyond the peers', the largest mean of {which}",
            _ms(_most(case.found.mean[rows])),
            f"{MIN_LOST_SHARE:.0%} of the step: {_ms(MIN_LOST_SHARE * step)}",
            "Device clocks vary by 1 to 2 % in healthy jobs.",
        ),
        Criterion(
            "Significance of that, in standard errors",
            _number(_most(case.found.z[rows])),
            f"{case.found.limit:.1f}",
            "With many ranks the largest one is high by chance; an excess in a single step counts 0.",
        ),
        Criterion(
            "What the step loses by it, by the model of the step",
            _ms(step * answer.gain / case.base_ns) if answer.gain > 0 else "no excess to price",
            f"{MIN_LOST_SHARE:.0%} of the step: {_ms(MIN_LOST_SHARE * step)}",
            "Work for which no rank waits costs nothing, so its rank is not blamed.",
        ),
    )


def _of_evidence(case: Case) -> tuple[Criterion, ...]:
    """The criteria on the evidence: the model's error, the matched share, and the number of whole steps."""
    matched = coverage(case).matched
    return (
        Criterion(
            "Difference between the model and the recorded step",
            _ms(case.residual_ns),
            "smaller prices are not proven",
            "The model is replayed with nothing changed and compared with the recording.",
        ),
        Criterion(
            "Exposed communication that was matched with all members",
            "none was exposed" if matched is None else f"{matched:.1%}",
            f"{LEAST_MATCHED:.0%}; a job below that is never called healthy",
            "Unmatched communication may be a wait or a transfer: it widens the interval of the price.",
        ),
        Criterion(
            "Steps recorded whole on enough ranks",
            str(len(case.steps.numbers)),
            f"{PROVING_STEPS} prove a faint excess",
            "One step cannot separate a slow rank from chance.",
        ),
    )


def _most(values: np.typing.NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(known.max()) if len(known) else float("nan")


def _number(value: float) -> str:
    return f"{value:.1f}" if np.isfinite(value) else "unknown"


def _ms(ns: float) -> str:
    return f"{ms(ns):.2f} ms" if np.isfinite(ns) else "unknown"
