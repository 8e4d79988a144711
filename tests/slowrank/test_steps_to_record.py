"""Advice on steps to record fits what was recorded: more than there are, and no marks where there are marks."""

from types import SimpleNamespace

import pytest

from tracekit.analysis.slowrank.gaps.evidence_gaps import more_steps, whole_steps


def recorded(steps, *, labelled=True):
    """What the advice reads of a case."""
    return SimpleNamespace(table=None, steps=SimpleNamespace(numbers=tuple(range(steps)), labelled=labelled))


@pytest.mark.parametrize(("steps", "wanted"), [(3, 10), (9, 10), (10, 20), (13, 26)])
def test_more_steps_are_asked_for_than_there_are(steps, wanted):
    assert more_steps(recorded(steps)) == f"record {wanted} steps or more"


def test_marks_are_asked_for_where_they_lack():
    assert "step()" not in whole_steps(recorded(1))
    assert "step()" in whole_steps(recorded(1, labelled=False))
