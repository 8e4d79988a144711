"""Verdicts, places and explanations on captures of a made-up trainer."""

import dataclasses
import math

import pytest
import torch

from numerics.comparison.compare import Options, compare
from tests.numerics.synthetic import Plan, tensor, write

PAR = Plan(tp=2, dp=2)


def judge(tmp_path, run, baseline=None, replay=None):
    folders = {}
    for name, plan in (("a", run), ("b", baseline), ("r", replay)):
        folders[name] = None if plan is None else write(tmp_path / name, plan)
    return compare(folders["a"], folders["b"], Options(replay=folders["r"]))


def with_change(plan, change, **more):
    return dataclasses.replace(plan, change=change, **more)


def times(part, value, where=lambda _: True):
    """Multiply what matches."""

    def change(key, coords, given):
        return given * value if part in key and where(coords) else given

    return change


@pytest.mark.parametrize(
    ("tp", "dp", "micro_batches"), [(1, 1, 1), (4, 1, 2), (2, 2, 2), (1, 4, 1), (4, 2, 4)]
)
@pytest.mark.quick(2)
def test_equal_values_are_identical_on_any_mesh(tmp_path, tp, dp, micro_batches):
    finding = judge(tmp_path, Plan(tp=tp, dp=dp, micro_batches=micro_batches), Plan())
    assert finding.verdict == "identical"
    assert finding.tensors.identical == finding.tensors.compared == 24
    assert finding.first_divergence is None
    assert finding.tensors.only_one == 0


def test_a_difference_that_the_replay_repeats_is_drift(tmp_path):
    ordered = dataclasses.replace(PAR, order=1e-6)
    finding = judge(tmp_path, ordered, Plan(), ordered)
    assert (finding.verdict, finding.proof) == ("drift", "matched_order")
    assert finding.tensors.explained == 12
    assert finding.tensors.unexplained == 0
    assert finding.first_divergence.tensor == "layers.0.mlp.out"
    assert 1e-7 < finding.largest_differences[0].rel < 1e-5


def test_without_a_replay_a_real_difference_is_undecided(tmp_path):
    finding = judge(tmp_path, dataclasses.replace(PAR, order=1e-6), Plan())
    assert finding.verdict == "undecided"
    assert finding.next.startswith("numerics capture --level tensors")  # nobody replays this trainer


def test_a_run_alone_is_checked_against_its_replay(tmp_path):
    assert judge(tmp_path, PAR, None, PAR).proof == "matched_order"
    bug = with_change(PAR, times("1/param/layers.0.mlp.weight", 1.5))
    assert judge(tmp_path / "2", bug, None, PAR).verdict == "bug"


@pytest.mark.parametrize("level", ["digest", "tensors"])
@pytest.mark.quick(1)
def test_a_factor_is_named_with_its_axis(tmp_path, level):
    plan = dataclasses.replace(PAR, level=level, dp=4)
    bug = with_change(plan, times("1/param_grad/layers.0", 4))
    finding = judge(tmp_path, bug, Plan(level=level), plan)
    assert finding.verdict == "bug"
    assert finding.first_divergence.tensor == "layers.0.mlp.weight.grad"
    assert finding.first_divergence.step == 1
    assert finding.first_divergence.phase == "reduce"
    assert finding.explanation == "factor 4, the size of dp"
    assert finding.first_divergence.axis == "dp"
    assert finding.tensors.unexplained == 1


def test_no_factor_is_fitted_to_a_scalar(tmp_path):
    plan = Plan(micro_batches=8)  # one sequence, so one loss, a micro-batch
    finding = judge(tmp_path, with_change(plan, times("0/activation/loss/3", 2)), None, plan)
    assert (finding.verdict, finding.first_divergence.tensor) == ("bug", "loss")
    assert finding.explanation is None
    assert finding.next.startswith("to see where loss differs, numerics capture --level tensors")


def test_gradients_are_never_shown_in_the_forward(tmp_path):
    def change(key, coords, given):
        return given + 1 if "/collective_out/layers.1.mlp.down/0" in key or "out.grad" in key else given

    found = judge(tmp_path, with_change(PAR, change), None, PAR).first_divergence
    assert (found.tensor, found.phase) == ("layers.1.mlp.out.grad", "backward")
    assert found.axis == "tp"


def test_a_skipped_collective_is_named(tmp_path):
    def junk(key, coords, given):
        return (
            tensor("junk", tuple(given.shape)) if key.startswith("0/activation/layers.1.mlp.out/") else given
        )

    bug = with_change(PAR, junk, skip=lambda key: key.startswith("0/") and "layers.1.mlp.down" in key)
    found = judge(tmp_path, bug, Plan(), PAR).first_divergence
    assert (found.tensor, found.axis) == ("layers.1.mlp.out", "tp")
    assert found.collective == "tp/all_reduce#layers.1.mlp.down"
    assert "the run never makes it" in found.evidence
    assert (found.step, found.phase, found.micro_batch) == (0, "forward", 0)


def test_a_doubled_collective_is_named(tmp_path):
    bug = with_change(
        PAR,
        times("0/activation/layers.0.mlp.out/1", 2),
        repeat=lambda key: key == "0/collective/layers.0.mlp.down/1",
    )
    finding = judge(tmp_path, bug, Plan(), PAR)
    found = finding.first_divergence
    assert (found.axis, found.micro_batch) == ("tp", 1)
    assert "more than its configuration asks for" in found.evidence
    assert finding.explanation == "factor 2, the size of tp"


@pytest.mark.slow
def test_an_extra_collective_that_changes_nothing_is_no_bug(tmp_path):
    harmless = dataclasses.replace(PAR, order=1e-6, repeat=lambda key: "layers.0.mlp.down" in key)
    finding = judge(tmp_path, harmless, Plan(), dataclasses.replace(PAR, order=1e-6))
    assert finding.verdict == "drift"


def test_a_missing_addend_is_named(tmp_path):
    plan = Plan(dp=4)

    def drop(key, coords, given):
        name = "layers.1.mlp.weight.grad"
        if key != f"0/param_grad/{name}/-1":
            return given
        return given - tensor(f"0/{name}.part2/4", tuple(given.shape))

    finding = judge(tmp_path, with_change(plan, drop), Plan(), plan)
    assert finding.explanation == "missing term: the partial of dp rank 2"
    assert finding.first_divergence.axis == "dp"


def test_an_unreduced_gradient_is_named(tmp_path):
    plan = Plan(dp=4)

    def own(key, coords, given):
        name = "layers.0.mlp.weight.grad"
        first = [tensor(f"0/{name}.part{i}/4", (16, 16)) for i in range(3)]
        parts = [*first, tensor(f"0/{name}", (16, 16)) - sum(first, torch.zeros(()))]
        return parts[coords["dp"]] if key == f"0/param_grad/{name}/-1" else given

    finding = judge(tmp_path, with_change(plan, own), None, plan)
    assert finding.verdict == "bug"
    assert finding.explanation.startswith("not reduced over dp: each rank still holds its own partial")
    assert finding.first_divergence.axis == "dp"


def test_a_stale_value_is_named(tmp_path):
    def stale(key, coords, given):
        return tensor("0/layers.0.mlp.weight", (16, 16)) if key == "1/param/layers.0.mlp.weight/-1" else given

    finding = judge(tmp_path, with_change(Plan(), stale), Plan(), Plan())
    assert finding.explanation == "stale by 1 step: the value of step 0"


def test_swapped_tensors_are_named(tmp_path):
    def swap(key, coords, given):
        other = {"0/activation/layers.0.mlp.hidden": 1, "0/activation/layers.1.mlp.hidden": 0}
        layer = other.get(key.rpartition("/")[0])
        if layer is None:
            return given
        first = int(key.rpartition("/")[2]) * 4
        return tensor(f"0/layers.{layer}.mlp.hidden", (8, 6, 16))[first : first + 4]

    finding = judge(tmp_path, with_change(Plan(), swap), Plan(), Plan())
    assert finding.explanation == "the value of layers.1.mlp.hidden"
    assert finding.first_divergence.tensor == "layers.0.mlp.hidden"


@pytest.mark.slow
def test_swapped_rows_and_a_shift_need_values(tmp_path):
    def swap(key, coords, given):
        if key == "1/param/layers.1.mlp.weight/-1" and coords["tp"] == 1:
            given = given.clone()
            given[[2, 3]] = given[[3, 2]]
        return given

    plan = dataclasses.replace(PAR, level="tensors")
    finding = judge(tmp_path, with_change(plan, swap), Plan(level="tensors"), plan)
    assert finding.explanation == "moved: rows 2 and 3 along dimension 0 are swapped"
    assert (finding.first_divergence.axis, finding.first_divergence.ranks) == ("tp", (1, 3))

    def shift(key, coords, given):
        return given.roll(1, 1) if key.startswith("0/activation/layers.0.mlp.hidden") else given

    finding = judge(tmp_path / "2", with_change(plan, shift), None, plan)
    assert "shifted by -1 along dimension 1" in finding.explanation


def test_rounding_to_bfloat16_is_a_precision_policy(tmp_path):
    def rounded(key, coords, given):
        return given.bfloat16().float() if key.startswith("1/param_grad/layers.0") else given

    finding = judge(tmp_path, with_change(PAR, rounded), Plan(), PAR)
    assert finding.verdict == "precision_policy"
    assert finding.explanation == "computed in bfloat16 where float32 is declared"


def test_a_constant_that_is_a_logarithm_is_named(tmp_path):
    def plus(key, coords, given):
        return given + math.log(4) if "/activation/loss/" in key else given

    plan = Plan(tp=4)
    finding = judge(tmp_path, with_change(plan, plus), Plan(), plan)
    assert finding.explanation == "plus a constant: + log 4, the size of tp"
    assert finding.first_divergence.axis == "tp"


def test_not_a_number_is_named(tmp_path):
    finding = judge(tmp_path, with_change(Plan(), times("1/param/layers.1", math.nan)), Plan(), Plan())
    assert "not a number" in finding.explanation


def test_only_signs_of_zeros(tmp_path):
    def zero(sign):
        def change(key, coords, given):
            if "hidden" in key:
                given = given.clone()
                given[..., 0] = sign * 0.0
            return given

        return change

    finding = judge(tmp_path, with_change(Plan(), zero(-1.0)), with_change(Plan(), zero(1.0)))
    assert finding.verdict == "signed_zero"
    assert finding.tensors.compared == finding.tensors.identical


def test_copies_that_differ_break_an_invariant_without_any_baseline(tmp_path):
    bug = with_change(
        Plan(dp=3, micro_batches=1), times("0/param/layers.0.mlp.weight", 1.5, lambda c: c["dp"] == 2)
    )
    bug.config = None
    finding = judge(tmp_path, bug)
    assert (finding.verdict, finding.proof) == ("bug", "invariant")
    assert "layers.0.mlp.weight" in finding.reason
    assert finding.first_divergence.ranks == (2,)


def test_a_broken_invariant_is_a_bug_despite_equality(tmp_path):
    bug = with_change(PAR, times("0/param/layers.0.mlp.weight", 1.5, lambda c: c["dp"] == 1))
    finding = judge(tmp_path, bug, Plan())
    assert (finding.verdict, finding.proof) == ("bug", "invariant")


def test_chaotic_growth_is_said(tmp_path):
    def grow(key, coords, given):
        step = int(key.split("/")[0])
        return given * (1 + 1e-6 * 50**step) if "/param/" in key and step >= 0 else given

    plan = with_change(Plan(steps=4), grow)
    finding = judge(tmp_path, plan, Plan(steps=4), plan)
    assert finding.verdict == "drift"
    assert finding.explanation.startswith("chaotic growth")


def test_a_partial_replay_covers_growth_but_no_jump(tmp_path):
    def grow(by):
        def change(key, coords, given):
            step = int(key.split("/")[0])
            return given * (1 + 1e-6 * by**step) if "/param/" in key and step >= 0 else given

        return change

    config = {"model": {}}
    for by, verdict in ((20, "drift"), (1e5, "undecided")):
        plan = with_change(Plan(steps=3, config=config), grow(by))
        first = with_change(Plan(steps=1, config=config), grow(by))
        finding = judge(tmp_path / str(by), plan, Plan(steps=3, config=config), first)
        assert finding.verdict == verdict


def test_the_same_command_twice_gives_equal_bytes(tmp_path):
    from numerics.report.json import compare_document, dumps

    finding = judge(tmp_path, dataclasses.replace(PAR, order=1e-6), Plan())
    again = compare(tmp_path / "a", tmp_path / "b")
    assert dumps(compare_document(finding)) == dumps(compare_document(again))
    assert torch.equal(tensor("x", (2,)), tensor("x", (2,)))
