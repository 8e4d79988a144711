"""Messages that Gloo found longer than the buffer for them: two ranks made unlike calls. Part of `judge`.

Gloo numbers no calls and names no sender, so that this shows a mismatch and the rank that noticed it, and no culprit.
"""

from tracekit.analysis.hang.witnesses.case import Case, leave_open
from tracekit.findings.hang import HangFinding

_DETAIL = (
    "run again with TORCH_DISTRIBUTED_DEBUG=DETAIL: each rank then compares its call with its peers' calls"
)


def unlike_sizes(case: Case, finding: HangFinding) -> HangFinding | None:
    """Return the answer of a job in which a message was longer than its buffer; None where calls show more.

    The rank that noticed it ended for it: that others wait for this rank then is a peer's fault.
    """
    noticed = {rank: sizes for log in case.bundle.logs for rank, sizes in log.waits.longer.items()}
    named = {culprit.rank for culprit in finding.culprits}
    mismatched = any(culprit.kind == "mismatched_call" for culprit in finding.culprits)
    if not noticed or mismatched or finding.open_calls or not named <= noticed.keys():
        return None
    rank, (came, expected) = min(noticed.items(), key=lambda item: (item[0] is None, item[0] or 0))
    where = "a rank" if rank is None else f"rank {rank}"
    reason = (
        f"{where} received a message of {came} bytes where its call expected {expected}: it and a peer made unlike "
        "calls of one group, and Gloo's line does not name the peer"
    )
    return leave_open(finding, reason, {r for r in noticed if r is not None}, _DETAIL)
