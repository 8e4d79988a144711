"""Numbers that stop being finite are named first: tensor, step, and whether the baseline's are finite there."""

import pytest
import torch
from torch import nn

from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove
from numerics.record.watch import watch


class Masked(nn.Module):
    """Its scores are masked by infinities, as attention's are."""

    def __init__(self):
        super().__init__()
        self.up, self.scores, self.down = nn.Linear(6, 6), nn.Identity(), nn.Linear(6, 2)

    def forward(self, x):
        mask = torch.zeros(6)
        mask[0] = -torch.inf
        return self.down(self.scores(self.up(x) + mask).softmax(-1))


def built():
    torch.manual_seed(0)
    model = Masked()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(out, factors, level="tensors", *, skips=False):
    """Train by a loss times a factor in each step; a trainer may skip updates by gradients that are not finite."""
    model, optimizer = built()
    watcher = watch(model, optimizer, out=out, level=level)
    for step, factor in enumerate(factors):
        given = torch.randn(4, 6, generator=torch.Generator().manual_seed(step))
        (model(given).square().mean() * factor).backward()
        finite = all(bool(p.grad.isfinite().all()) for p in model.parameters())
        if finite or not skips:
            optimizer.step()
        optimizer.zero_grad()
    watcher.close()
    return out


NAN = float("nan")
PROVED = Options(prove=lambda run: prove(run, *built()))


@pytest.mark.parametrize("level", ["digest", "tensors"])
@pytest.mark.parametrize("beside", [True, False])
def test_lost_numbers_are_named_first(level, beside, tmp_path):
    run = train(tmp_path / "run", [1.0, NAN, 1.0], level)
    baseline = train(tmp_path / "baseline", [1.0, 1.0, 1.0], level) if beside else None
    found = compare(run, baseline)
    assert (found.verdict, found.first_divergence.tensor, found.first_divergence.step) == (
        "bug",
        "down.out.grad",
        1,
    )
    assert "not a number" in found.reason
    assert ("the baseline's are finite" in found.reason) == beside


def test_lost_numbers_are_named_by_a_local_proof(tmp_path):
    found = compare(train(tmp_path, [1.0, NAN]), None, PROVED)
    assert found.verdict == "bug"
    assert "down.out.grad of step 1 (backward) on rank 0" in found.reason


def test_masks_and_skipped_updates_are_no_bug(tmp_path):
    run, again = (train(tmp_path / name, [1.0, torch.inf, 1.0], skips=True) for name in ("run", "again"))
    assert compare(run, again).verdict == "identical"
    assert compare(run, None, PROVED).verdict != "bug"


def test_numbers_lost_in_both_runs_are_no_difference(tmp_path):
    run, again = (train(tmp_path / name, [1.0, NAN]) for name in ("run", "again"))
    assert compare(run, again).verdict == "identical"
