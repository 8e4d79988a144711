"""Evidence of which a test gives what it does not want to be measured."""

from tracekit.analysis.slowrank.evidence import Evidence
from tracekit.case.case import Case


def known(case: Case, **facts: object) -> Evidence:
    """Return the evidence about `case` in which `facts` (its attributes) are given; the rest is measured."""
    evidence = Evidence(case)
    assert facts.keys() <= set(dir(evidence))
    vars(evidence).update(facts)
    return evidence
