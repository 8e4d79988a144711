"""Stalls that spans name are no noise: ranks without them are the usual ones, also where half of all have them."""

import pytest

from tests.slowrank.test_mechanisms import SLOW, job, span
from tracekit.analysis.slowrank.analyse import analyse

BESIDE = 3
LOADER, COLLECTOR = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "Python GC"


def stalls(struck, name):
    """A span of 6 ms on a rank in the steps that `struck` (rank → steps) says."""

    def stall(line, step):
        if step in struck.get(line.rank, ()):
            span(name, "user_annotation", 6_000.0)(line, step)

    return stall


def answer(folder, struck, name):
    stall = stalls(struck, name)
    return analyse(job(folder, pause=stall, beside=stall))


@pytest.mark.parametrize(("name", "cause"), [(LOADER, "dataloader"), (COLLECTOR, "host_stall")])
def test_half_of_the_ranks_are_named_by_spans(tmp_path, name, cause):
    found = answer(tmp_path, {SLOW: (1, 3, 5), BESIDE: (1, 3, 5)}, name)
    assert (found.verdict, found.cause) == ("slow_rank", cause), found.reason
    assert sorted(s.rank for s in found.suspects) == [SLOW, BESIDE]
    assert {s.steps for s in found.suspects} == {(1, 3, 5)}


def test_spans_of_no_known_cause_name_no_half(tmp_path):
    found = answer(tmp_path, {SLOW: (1, 3, 5), BESIDE: (1, 3, 5)}, "iteration")
    assert (found.verdict, found.suspects) == ("inconclusive", ()), found.reason
    assert sorted(c.rank for c in found.candidates) == [SLOW, BESIDE]


@pytest.mark.parametrize("others", [{0: (4,)}, {0: (2, 4), 1: (2, 4)}], ids=["once", "in turn"])
def test_late_loaders_of_others_too_accuse_none(tmp_path, others):
    found = answer(tmp_path, {SLOW: (1, 3, 5), BESIDE: (1, 3, 5), **others}, LOADER)
    assert found.suspects == ()
