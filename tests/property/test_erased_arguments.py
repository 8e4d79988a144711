"""Arguments, marks and host records that are missing: the culprit stays, or the answer is open."""

from contextlib import suppress
from functools import cache

import pytest

from tests.accuracy.score import judge
from tests.generator import Case, generate
from tests.generator.erasures import ERASURES, erase, two_captures
from tests.generator.mesh import Mesh
from tests.marks import quick_first, quick_if
from tracekit.analysis.slowrank.analyse import analyse
from tracekit.errors import InputError, MeshError
from tracekit.ingest import load

FLAT = (((2, 2, 1, 2), 1, "launch_bound"), ((2, 1, 1, 4), 5, "slow_compute"), ((4, 1, 1, 4), 3, "healthy"))
PIPED = (
    ((2, 1, 2, 2), 2, "slow_host"),
    ((1, 2, 2, 4), 11, "launch_bound"),
    ((1, 1, 4, 2), 10, "slow_compute"),
)
OPEN = ("graphs", "step marks")
"""What an answer may be left open without."""
QUICK = ("seq", "arguments of some")
"""Erasures that change the way of reading most."""


@cache
def job(shape, seed: int, kind: str) -> Case:
    """A small job with all files whole; `shape` is tp, cp, pp, dp."""
    mesh = Mesh(("tp", "cp", "pp", "dp"), dict(zip(("tp", "cp", "pp", "dp"), shape, strict=True)))
    return generate(seed, kind=kind, mesh=mesh, steps=4, missing=set(), truncated={})


def without(case: Case, what: str, folder):
    """The answer to the case without some of its evidence."""
    case.write(folder)
    erase(folder, what, case.seed)
    return analyse(load([str(folder)]))


@pytest.mark.parametrize("what", quick_if(QUICK.__contains__, sorted(set(ERASURES) - set(OPEN))))
@pytest.mark.parametrize(("shape", "seed", "kind"), [*quick_first(1, FLAT), *quick_first(0, PIPED)])
@pytest.mark.quick(1)
def test_what_others_tell_may_be_missing(tmp_path, shape, seed, kind, what):
    recorded = job(shape, seed, kind)
    assert judge(recorded.truth, without(recorded, what, tmp_path)) == "right"


@pytest.mark.parametrize("what", quick_first(1, OPEN))
@pytest.mark.parametrize(("shape", "seed", "kind"), [*quick_first(1, FLAT), *quick_first(0, PIPED)])
def test_without_marks_or_launches_nobody_else_is_blamed(tmp_path, shape, seed, kind, what):
    recorded = job(shape, seed, kind)
    with suppress(MeshError, InputError):
        assert judge(recorded.truth, without(recorded, what, tmp_path)) in ("right", "inconclusive")


@pytest.mark.parametrize(("shape", "seed", "kind"), [*quick_first(0, FLAT), *quick_first(2, PIPED)])
def test_two_captures_cost_what_one_costs(tmp_path, shape, seed, kind):
    """The time between the captures is no step's: it neither hides the culprit nor changes its price."""
    mesh = job(shape, seed, kind).job.mesh
    case = generate(seed, kind=kind, mesh=mesh, steps=8, missing=set(), truncated={})
    case.write(tmp_path)
    two_captures(tmp_path)
    answer = analyse(load([str(tmp_path)]))
    assert judge(case.truth, answer) == "right"
    assert answer.what_if.slowdown == pytest.approx(case.truth.slowdown, abs=0.05)
    assert answer.what_if.step_ms == pytest.approx(answer.steps.median_ms, rel=0.1)
