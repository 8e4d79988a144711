"""Rounding is never one element, one rank or an integer alone."""

import pytest
import torch

from numerics.local.bounds.bounded import known
from numerics.local.draws.chance import no_accident
from numerics.local.forced_pass import Check
from numerics.local.gradients.learned_orders import LearnedOrders
from numerics.local.gradients.parameter_gradients import Scale, Sum, judge_gradient
from numerics.local.judgement import Judged, Standing, judge, lone_element
from numerics.local.local_check import LocalCheck
from numerics.local.lone import without_lone_ranks
from numerics.local.records.recorded import Reading


def checks(standings):
    """One check for each (tensor, dp rank, micro-batch)."""
    return [
        LocalCheck(0, (rank, batch), Check(f"{tensor}.out", tensor, "forward", Judged(standing, elements=64)))
        for (tensor, rank, batch), standing in standings.items()
    ]


def grid(of):
    places = [(t, r, b) for t in "abcdef" for r in range(3) for b in range(2)]
    return checks({place: Standing.WITHIN if of(*place) else Standing.EQUAL for place in places})


def beyond(found):
    return [one for one in found if one.check.judged.standing == Standing.BEYOND]


def test_one_rank_alone_is_no_rounding():
    found = beyond(without_lone_ranks(grid(lambda tensor, rank, _: rank == 1 and tensor in "abc")))
    assert {one.place[0] for one in found} == {1}
    assert found[0].check.judged.lone.startswith("only data-parallel rank 1 differs, in 6 tensors")


@pytest.mark.parametrize(
    "of",
    [
        lambda tensor, rank, _: tensor in "ab",  # on all ranks
        lambda tensor, rank, batch: (tensor, rank, batch) == ("a", 1, 0),  # by chance
        lambda *_: False,
    ],
)
def test_all_ranks_or_few_tensors_may_round(of):
    assert not beyond(without_lone_ranks(grid(of)))


@pytest.mark.parametrize(
    ("own", "every", "wrong", "alone"),
    [
        (20_000, 60_000, 5_000, True),
        (500_000, 10**9, 400_000, True),
        (40_000, 60_000, 2, False),
        (3, 9, 4, True),
    ],
)
def test_chance_of_many_rows_is_no_overflow(own, every, wrong, alone):
    assert no_accident(own, every, wrong) == alone


def test_ranks_with_other_sizes_are_no_peers():
    found = grid(lambda tensor, rank, _: rank == 1)
    other = [
        LocalCheck(
            0,
            one.place,
            Check(one.check.tensor, "", "forward", Judged(one.check.judged.standing, elements=9)),
        )
        if one.place[0] == 1
        else one
        for one in found
    ]
    assert not beyond(without_lone_ranks(other))


def turned(value, at, bit):
    out = value.clone()
    out.view(torch.int32)[at] ^= 1 << bit
    return out


def test_one_element_alone_is_named_with_its_bit():
    value = torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert lone_element(turned(value, 7, 20), value) == (
        "element 7 of 100 alone differs, by one flipped bit: bit 20"
    )
    assert lone_element(turned(value, 7, 31), value).endswith("bit 31")
    assert lone_element(turned(value, 7, 0), value) == ""  # a rounding that turned over
    assert lone_element(value + (torch.arange(100) == 3), value) == "element 3 of 100 alone differs"
    assert lone_element(turned(turned(value, 7, 20), 8, 20), value) == ""
    assert lone_element(turned(value[:20], 7, 20), value[:20]) == ""


def test_integers_are_equal_or_wrong():
    right = torch.arange(10)
    assert judge(right, [Reading(right)])[0].standing == Standing.EQUAL
    assert judge(right, [Reading(right + (right == 3))])[0].standing == Standing.BEYOND


def summed(change=lambda total: total):
    drawn = torch.Generator().manual_seed(4)
    total, learned = Sum(), LearnedOrders()
    parts = [torch.randn(200, generator=drawn) for _ in range(6)]
    for number, part in enumerate(parts):
        total.add((number // 2, number % 2), part, known(part))
    right = (parts[0] + parts[1]) + (parts[2] + parts[3]) + (parts[4] + parts[5])
    assert judge_gradient(right, total, Scale(1.0, ""), learned).standing == Standing.EQUAL
    return judge_gradient(change(right), total, Scale(1.0, ""), learned)


def test_one_element_of_a_gradient_is_no_rounding():
    found = summed(lambda total: turned(total, 5, 3))
    assert (found.standing, found.lone) == (
        Standing.BEYOND,
        "element 5 of 200 alone differs, by one flipped bit: bit 3",
    )


def test_missing_terms_are_told_by_rank_and_micro_batch():
    drawn = torch.Generator().manual_seed(4)
    parts = [torch.randn(200, generator=drawn) for _ in range(6)]
    assert summed(lambda total: total - parts[3]).how == (
        "holds nothing of dp rank 1, micro-batch 1, where each share is due once"
    )
    assert summed(lambda total: total - parts[2] - parts[3]).how == (
        "holds nothing of dp rank 1, where each share is due once"
    )
