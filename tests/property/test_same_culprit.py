"""However a run is recorded, the answer is the same culprit or `inconclusive`, and never another rank."""

from contextlib import suppress
from functools import cache

import pytest

from tests.accuracy.score import answer_case, judge
from tests.generator import Case, generate
from tests.generator.variants import (
    drop_rank,
    permute_axes,
    permute_ranks,
    rename_files,
    shift_clock,
    shuffle_events,
    split_steps,
)
from tests.marks import quick_first, quick_nth
from tracekit.errors import MeshError

CASES = (
    (101, "slow_compute"),
    (102, "launch_bound"),
    (103, "slow_compute"),
    (106, "healthy"),
    (104, "slow_host"),
    (105, "late_data"),
)


@cache
def recorded(seed: int, kind: str) -> Case:
    """A small case with all files whole, so that the variant is the only trouble."""
    return generate(seed, kind=kind, world=8, steps=4, missing=set(), truncated={})


@pytest.fixture(
    params=quick_nth(3, CASES),
    ids=lambda c: f"{c[1]}-{c[0]}",
)
def case(request):
    return recorded(*request.param)


def blames_nobody_else(case: Case) -> None:
    """Fails where the answer names a rank that the truth does not, or calls a healthy job slow."""
    finding = answer_case(case)
    outcome = judge(case.truth, finding)
    assert outcome in ("right", "inconclusive"), f"{outcome}: {finding.reason} (truth {case.truth})"


@pytest.mark.quick(1)
def test_the_plain_recording_is_answered_right(case):
    assert judge(case.truth, answer_case(case)) == "right"


@pytest.mark.parametrize("ns", quick_first(1, [37_000_000, -1_000_000_000, 1_000_000_000]))
@pytest.mark.quick(1)
def test_shifting_a_clock_changes_nothing(case, ns):
    rank = (case.seed + ns // 1_000_000) % case.job.mesh.world
    assert judge(case.truth, answer_case(shift_clock(case, rank, ns))) == "right"


@pytest.mark.quick(1)
def test_shuffling_rows_changes_nothing(case):
    assert judge(case.truth, answer_case(shuffle_events(case))) == "right"


@pytest.mark.quick(1)
def test_renaming_files_changes_nothing(case):
    assert judge(case.truth, answer_case(rename_files(case))) == "right"


@pytest.mark.parametrize("seed", quick_first(1, [1, 2]))
@pytest.mark.quick(1)
def test_moving_ranks_within_the_mesh_moves_the_culprit(case, seed):
    assert judge(*_truth_and_answer(permute_axes(case, seed))) == "right"


@pytest.mark.quick(1)
def test_permuted_ranks_name_one_culprit_or_request_mesh(case):
    with suppress(MeshError):  # an honest refusal: without strides the axes may not be told apart
        blames_nobody_else(permute_ranks(case, case.seed))


@pytest.mark.quick(1)
def test_splitting_files_at_a_step_names_nobody_else(case):
    blames_nobody_else(split_steps(case))


@pytest.mark.quick(1)
def test_losing_an_innocent_rank_names_nobody_else(case):
    innocent = max(set(range(case.job.mesh.world)) - case.truth.suspects)
    blames_nobody_else(drop_rank(case, innocent))


def test_losing_the_culprit_blames_nobody_else(case):
    if not case.truth.suspects:
        pytest.skip("a healthy job has no culprit to lose")
    lost = min(case.truth.suspects)
    finding = answer_case(drop_rank(case, lost))
    assert not finding.suspects or finding.suspects[0].rank in case.truth.suspects, finding.reason


def _truth_and_answer(case: Case):
    return case.truth, answer_case(case)
