"""The page of causes says what the tables of the analysis say."""

import re
from dataclasses import replace
from typing import get_args

import pytest

from tests.docs.causes import PAGE, page
from tests.slowrank.jobs import grid, job
from tracekit import slowrank
from tracekit.causes import CAUSES, MECHANISMS
from tracekit.findings.slowrank import Cause, CauseShare
from tracekit.report.slowrank_text import slowrank_text


def test_page_of_causes_is_that_of_the_tables():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.docs.causes"


def test_mechanisms_have_names_of_their_own():
    assert len(MECHANISMS) == len({entry for cause in CAUSES.values() for entry in cause.mechanisms})
    assert MECHANISMS.keys().isdisjoint(CAUSES)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return slowrank(job(tmp_path_factory.mktemp("job"), grid(dp=4), slow={3: 1.3}))


def sections(finding):
    """The sections of the page that an answer names."""
    return re.findall(r"docs/causes\.md#(\w+)", slowrank_text(finding))


@pytest.mark.parametrize("cause", get_args(Cause))
def test_answers_name_the_section_of_their_cause(cause, found):
    assert f"\n## {cause}\n" in PAGE.read_text(encoding="utf-8")
    named = tuple(replace(s, cause=cause, causes=()) for s in found.suspects)
    assert sections(replace(found, cause=cause, suspects=named)) == [cause]


def test_undecided_and_open_answers_name_each_section_once(found):
    (suspect,) = found.suspects
    rivals = (CauseShare("host_stall", 0.5), CauseShare("cpu_launch", 0.4))
    undecided = replace(found, cause="unknown", suspects=(replace(suspect, cause="unknown", causes=rivals),))
    assert sections(undecided) == ["host_stall", "cpu_launch"]
    causes = ("network", "unknown", "network", "memory")
    candidates = tuple(replace(suspect, rank=n, cause=cause) for n, cause in enumerate(causes))
    left = replace(found, verdict="inconclusive", suspects=(), candidates=candidates)
    assert sections(left) == ["network", "memory"]
    assert sections(replace(found, verdict="healthy", cause=None, suspects=())) == []
