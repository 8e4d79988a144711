"""The answer of `numerics bisect` as text and as JSON."""

from numerics.bisection.search import BISECT_SCHEMA, BisectFinding
from numerics.report.documents import BisectDocument
from numerics.report.json import compare_document
from numerics.report.text import compare_text


def bisect_text(finding: BisectFinding, *, verbose: bool = False) -> str:
    """Return the finding as lines for a terminal: the step first, then the comparison of that step."""
    runs = 2 * (len(finding.rounds) + 1)
    if finding.first_step is None:
        head = f"NO DIVERGENT STEP in {finding.steps} ({runs} runs); the last step compared:"
    elif finding.first_step < 0:
        head = f"DIVERGENT BEFORE THE FIRST STEP ({runs} runs):"
    else:
        head = f"FIRST DIVERGENT STEP: {finding.first_step} of 0 to {finding.steps - 1} ({runs} runs):"
    rounds = [f"  recorded {_listed(r.probed)}: divergent {_listed(r.divergent)}" for r in finding.rounds]
    lines = [head, *(rounds if verbose else []), compare_text(finding.compare, verbose=verbose)]
    return "\n".join(lines)


def _listed(steps: tuple[int, ...]) -> str:
    return ", ".join(map(str, steps)) or "none"


def bisect_document(finding: BisectFinding) -> BisectDocument:
    """Return the finding as JSON-ready data."""
    return {
        "schema": BISECT_SCHEMA,
        "steps": finding.steps,
        "first_step": finding.first_step,
        "rounds": [{"probed": list(r.probed), "divergent": list(r.divergent)} for r in finding.rounds],
        "compare": compare_document(finding.compare),
    }
