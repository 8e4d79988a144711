"""The answer about a case: the verdict, and the passes behind it in their order."""

from tracekit.analysis.slowrank.answers.dominant_rank import with_most_of_it
from tracekit.analysis.slowrank.answers.doubted_answer import doubted
from tracekit.analysis.slowrank.answers.lag_before import without_lag_before
from tracekit.analysis.slowrank.answers.late_posts import with_late_posts
from tracekit.analysis.slowrank.answers.steady_work import with_hidden_rank
from tracekit.analysis.slowrank.answers.timed_dumps import tempered
from tracekit.analysis.slowrank.answers.unsteady_links import with_unsteady_link
from tracekit.analysis.slowrank.answers.verdict import decide
from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.suspects import Answer, left_open
from tracekit.analysis.slowrank.unrecorded.unseen_replay import with_typical_unseen


def concluded(case: Case) -> tuple[Case, Answer]:
    """Return the answer after all passes behind the verdict, and the case that it rests on."""
    case, answer = without_lag_before(*_judged(case), _judged)
    answer = with_most_of_it(case, with_hidden_rank(case, tempered(case, answer)))
    answer = with_unsteady_link(case, with_late_posts(case, answer))
    return case, _of_part(case, doubted(case, answer))


def _judged(case: Case) -> tuple[Case, Answer]:
    """The answer, and the case that it rests on: with unseen ranks where that model is better, or names a rank."""
    replayed = with_typical_unseen(case)
    if replayed is not None and replayed.residual_ns < case.residual_ns:
        return replayed, decide(replayed)
    answer = decide(case)
    if replayed is not None and answer.verdict == "inconclusive":
        again = decide(replayed)
        if again.verdict == "slow_rank":
            return replayed, again
    return case, answer


def _of_part(case: Case, answer: Answer) -> Answer:
    """`answer`, left open where it rests on a part of a step: that proves neither health nor whom it names."""
    if not case.of_part or answer.verdict == "inconclusive":
        return answer
    reason = f"no step was recorded whole on enough ranks; in the part that all recorded {answer.reason}"
    remedy = "record three whole steps or more on every rank"
    return left_open(reason, remedy, answer.suspects)
