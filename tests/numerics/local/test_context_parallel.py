"""Context parallelism against a baseline, its means of means, and positions that are local to a rank."""

from functools import partial

import pytest

from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove
from tests.numerics.local.context_trainers import build, trained
from tests.numerics.local.trainers import pipelined
from tests.numerics.local.trainers import trained as cut_by_hand


@pytest.fixture(scope="module")
def runs(ranks, tmp_path_factory):
    made = {}

    def run(world=3, cut="even", **more):
        key = (world, cut, str(more))
        if key not in made:
            made[key] = tmp_path_factory.mktemp("run") / "run"
            ranks.run(partial(trained, cut=cut, **more), world, made[key])
        return made[key]

    return run


def answered(run, baseline=None, positions="learned"):
    model, optimizer = build(positions)
    return compare(run, baseline, Options(prove=partial(prove, model=model, optimizer=optimizer)))


@pytest.mark.parametrize("cut", ["even", "uneven", "zigzag"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
@pytest.mark.quick(1)
def test_placed_pieces_are_the_baselines_sequences(runs, cut, positions):
    run, baseline = (runs(world, cut if world > 1 else "even", positions=positions) for world in (3, 1))
    for found in (answered(run, None, positions), answered(run, baseline, positions)):
        assert (found.verdict, found.proof) == ("rounding", "bound"), found.reason


def test_unplaced_pieces_leave_it_open(runs):
    found = answered(runs(placed=False), runs(1))
    assert found.verdict == "undecided"
    assert "the run does not say which piece each rank holds" in found.reason
    assert "watch(place=...)" in found.next


@pytest.mark.parametrize("means", ["averaged", pytest.param(True, marks=pytest.mark.slow)])
def test_means_of_means_over_context_ranks_are_doubted(runs, means):
    found = answered(runs(cut="uneven", means=means))
    assert found.verdict == "undecided"
    assert "a mean of the means over ranks that hold pieces of the sequences" in found.reason
    assert "divided more than once" not in found.reason
    assert "counts 1.667 times as much" in found.reason
    even = answered(runs(means=means))
    assert even.verdict == "rounding", even.reason


@pytest.mark.parametrize(("positions", "cut"), [("learned", "even"), ("rotary", "zigzag")])
def test_local_positions_of_a_model_are_named(runs, positions, cut):
    found = answered(runs(cut=cut, positions=positions, local=True), None, positions)
    assert found.verdict == "bug"
    assert found.explanation.startswith("its positions are local to each rank")


@pytest.mark.slow
def test_given_local_positions_are_named(runs):
    run = runs(positions="given", local=True)
    found = answered(run, None, "given")
    assert found.verdict == "undecided"
    assert found.reason.startswith("in.1 in step 0 begins again on each rank")
    found = answered(run, runs(1, positions="given"), "given")
    assert found.verdict == "bug"
    assert "the baseline's positions count through each sequence" in found.reason
    found = answered(runs(positions="given"), runs(1, positions="given"), "given")
    assert found.verdict == "rounding", found.reason


@pytest.mark.parametrize("kind", ["tensor", "pipeline"])
def test_parts_alone_ask_for_a_model(ranks, tmp_path, kind):
    ranks.run(cut_by_hand, 1, "plain", tmp_path / "one")
    if kind == "tensor":
        ranks.run(cut_by_hand, 2, "by_hand", tmp_path / "run")
    else:
        ranks.run(pipelined, 2, tmp_path / "run")
    found = compare(tmp_path / "run", tmp_path / "one")
    assert found.verdict == "undecided"
    assert "tensors have the same names in both captures" in found.reason
    assert found.next.startswith("numerics compare --model")
    assert "watch(place=...)" in found.next
    assert ("16x32 on rank 0" in found.reason) == (kind == "tensor"), found.reason
