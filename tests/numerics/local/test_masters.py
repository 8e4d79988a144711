"""FP32 masters of BF16 weights: recognised by their values, stepped, and copied back to the weights."""

import pytest
import torch
from torch import nn

from numerics.columns import Names, read_columns
from numerics.comparison.proofs.other_sums import other_sums
from numerics.comparison.verdict import Case
from numerics.record.masters.known import masters_of
from numerics.record.recorder import Recorder
from numerics.store import open_capture
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
    assert all(found.of(p).tensor is c for p, c in zip(model.parameters(), copies, strict=True))


def summed(folder, ranks, sent, stepped):
    """Columns of a run of two micro-batches over a BF16 weight: what ranks send into a sum, and what steps it."""
    for rank in range(ranks):
        with Recorder(folder, rank, ranks, {"dp": rank}) as recorder:
            recorder.record("w", stepped.bfloat16(), step=-1, phase="init", kind="param", replica=rank)
            for batch in range(2):
                recorder.record("out", stepped, step=0, phase="forward", kind="activation", micro_batch=batch)
            if sent is not None:
                more = {"op": "all_reduce", "group": range(ranks), "partial": f"dp={rank}"}
                recorder.record("flat", sent, step=0, phase="reduce", kind="collective_in", **more)
            recorder.record("w.grad", stepped, step=0, phase="reduce", kind="param_grad", replica=rank)
    return read_columns(open_capture(folder), Names())


@pytest.mark.parametrize("wide_sent", [False, True])
def test_a_sum_of_one_run_alone_is_no_policy(wide_sent, tmp_path):
    narrow, wide = torch.arange(64).float(), torch.arange(64) / 3 + 1e-3
    run = summed(tmp_path / "run", 3, wide if wide_sent else narrow, wide)
    baseline = summed(tmp_path / "baseline", 1, None, narrow)
    found = other_sums(Case(run, baseline, None, ()))
    assert (found or "").startswith("the baseline sums") == wide_sent


def test_equal_masters_of_two_groups_are_unknown():
    model = narrow_model()
    *others, last = wide(model.parameters())
    assert not masters_of(model, torch.optim.AdamW([{"params": others}, {"params": [last]}]))


@pytest.mark.parametrize("change", [lambda c: c + 1, lambda c: c.to(torch.bfloat16)])
def test_other_copies_are_no_masters(change):
    model = narrow_model()
    copies = [nn.Parameter(change(c.detach())) for c in wide(model.parameters())]
    assert not masters_of(model, torch.optim.AdamW(copies))


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
