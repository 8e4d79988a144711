"""FP32 masters of BF16 weights: recognised by their values, stepped, and copied back to the weights."""

import pytest
import torch
from torch import nn

from numerics.record.training_state import masters_of, stepped
from tests.reports.asked import ask
from tests.reports.trained import pair
from tests.reports.wide_copies import Masters, NotCopiedBack, NotStepped, StaleMasters, SummedWide
from tests.reports.wrong import COMPARE


def narrow_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.LayerNorm(4)).to(torch.bfloat16)


def wide(weights):
    return [nn.Parameter(weight.detach().float().clone()) for weight in weights]


def test_masters_follow_their_weights():
    model = narrow_model()
    copies = wide(model.parameters())
    found = masters_of(model, torch.optim.AdamW(copies))
    assert all(stepped(p, found) is c for p, c in zip(model.parameters(), copies, strict=True))


def test_equal_masters_of_two_groups_are_unknown():
    model = narrow_model()
    *others, last = wide(model.parameters())
    assert masters_of(model, torch.optim.AdamW([{"params": others}, {"params": [last]}])) == {}


@pytest.mark.parametrize("change", [lambda c: c + 1, lambda c: c.to(torch.bfloat16)])
def test_other_copies_are_no_masters(change):
    model = narrow_model()
    copies = [nn.Parameter(change(c.detach())) for c in wide(model.parameters())]
    assert masters_of(model, torch.optim.AdamW(copies)) == {}


CASES = {
    "not copied back": (NotCopiedBack(), Masters(), "bug", "not what the optimiser left"),
    "not stepped": (NotStepped(), Masters(), "bug", "no update in step 1"),
    "made before the broadcast": (StaleMasters(), Masters(), "bug", "hold the same part"),
    "summed in BF16": (SummedWide(sums=torch.bfloat16), SummedWide(), "precision_policy", "need FP32"),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_wrong_masters_are_called(case, tmp_path):
    trainer, sound, verdict, words = CASES[case]
    pair(trainer, sound, sound_world=3)(tmp_path)
    answer = ask((*COMPARE, "--model", "tests/reports/wide_copies.py:built_narrow"), tmp_path)
    assert answer.verdict == verdict, answer.text
    assert words in answer.text
