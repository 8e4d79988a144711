"""The proof runs modules in the modes that the run had; a trainer that evaluates by mistake is named."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from numerics import watch
from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove

WIDTH = 8


class Layers(nn.Module):
    """A dropout layer, and statistics of a batch that run on."""

    def __init__(self):
        super().__init__()
        self.up, self.norm, self.drop = nn.Linear(WIDTH, 32), nn.BatchNorm1d(32), nn.Dropout(0.25)
        self.down = nn.Linear(32, 4)

    def forward(self, x):
        return self.down(self.drop(functional.gelu(self.norm(self.up(x)))))


def built():
    torch.manual_seed(2)
    return Layers()


def drawn(step):
    return torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(step))


def served(out, mode, one_by_one):
    """Forwards of an engine, of six samples or of each alone."""
    model = built()
    model.train(mode)
    watcher = watch(model, micro_batches=6 if one_by_one else 1, out=out, level="tensors")
    with torch.no_grad():
        for step in range(2):
            for part in drawn(step).split(1 if one_by_one else 6):
                model(part)
    watcher.close()


def trained(out, evaluates, steps=2):
    """Train; the modules named are in evaluation mode from step 1 on."""
    model = built()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = watch(model, optimizer, out=out, level="tensors")
    for step in range(steps):
        if step:
            for name in evaluates:
                model.get_submodule(name).eval()
        functional.cross_entropy(model(drawn(step)), torch.arange(6) % 4).backward()
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


def proved(run, base=None, model=None):
    return compare(run, base, Options(prove=partial(prove, model=model or built(), optimizer=None)))


def test_an_engine_that_evaluates_is_proved_so(tmp_path):
    served(tmp_path / "base", mode=False, one_by_one=False)
    served(tmp_path / "run", mode=False, one_by_one=True)
    found = proved(tmp_path / "run", tmp_path / "base")
    assert found.verdict in {"identical", "drift", "rounding"}, found.reason


@pytest.mark.parametrize(
    "evaluates", [[""], *(pytest.param([name], marks=pytest.mark.slow) for name in ("drop", "norm"))]
)
def test_training_that_evaluates_is_named(tmp_path, evaluates):
    trained(tmp_path / "run", evaluates)
    found = proved(tmp_path / "run")
    assert found.verdict == "undecided", found.reason
    assert "runs in evaluation mode from step 1 on" in found.reason
    assert "`model.train()` after each evaluation" in found.next


def test_layers_frozen_in_the_model_too_are_intended(tmp_path):
    trained(tmp_path / "run", ["drop"])
    model = built()
    model.drop.eval()
    found = proved(tmp_path / "run", model=model)
    assert found.verdict == "identical", found.reason


@pytest.mark.parametrize("built_so", ["", pytest.param("drop", marks=pytest.mark.slow)])
def test_a_run_that_trains_is_proved_so(tmp_path, built_so):
    """Loaders of models often return them in evaluation mode."""
    trained(tmp_path / "run", [])
    model = built()
    model.get_submodule(built_so).eval()
    found = proved(tmp_path / "run", model=model)
    assert found.verdict == "identical", found.reason


@pytest.mark.parametrize("serves", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_runs_in_other_modes_are_named(tmp_path, serves):
    for name, mode in (("base", False), ("run", True)):
        if serves:
            served(tmp_path / name, mode=mode, one_by_one=False)
        else:
            trained(tmp_path / name, [] if mode else ["drop"])
    found = proved(tmp_path / "run", tmp_path / "base")
    assert found.verdict == "undecided", found.reason
    assert "drop runs in training mode in step" in found.reason
    assert "random numbers" not in found.reason
