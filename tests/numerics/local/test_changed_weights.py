"""Trainers that change weights beside the optimiser, that differentiate gradients, or whose gradients name rows."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove
from numerics.record.watch import watch

WORDS, WIDTH, STEPS = 24, 6, 3


class Model(nn.Module):
    """Words to words."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.up, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        return self.head(torch.tanh(self.up(self.words(words))))


def build(kind=torch.optim.SGD):
    torch.manual_seed(2)
    model = Model()
    if kind is torch.optim.SparseAdam:
        model.up.requires_grad_(False)
        model.head.requires_grad_(False)
    return model, kind([p for p in model.parameters() if p.requires_grad], lr=0.1)


def loss_of(model, step):
    words = torch.randint(0, WORDS, (4, 5), generator=torch.Generator().manual_seed(step))
    return functional.cross_entropy(model(words).flatten(0, 1), words.flatten())


def nothing(_model, _step):
    pass


def trained(folder, after=nothing, before=nothing, kind=torch.optim.SGD, loss=loss_of):
    """A capture of three steps; `before` and `after` change the weights around the optimiser's step."""
    model, optimizer = build(kind)
    watcher = watch(model, optimizer, out=folder, level="tensors")
    for step in range(STEPS):
        loss(model, step).backward()
        with torch.no_grad():
            before(model, step)
            optimizer.step()
            after(model, step)
        optimizer.zero_grad()
    watcher.close()
    return folder


def answer(run, baseline=None, kind=torch.optim.SGD):
    model, optimizer = build(kind)
    return compare(run, baseline, Options(prove=partial(prove, model=model, optimizer=optimizer)))


def projected(model, _step):
    model.up.weight.data /= model.up.weight.norm(dim=-1, keepdim=True)


def moved(model, _step):
    model.up.weight += 0.01


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.SparseAdam])
def test_gradients_that_name_rows_are_whole(tmp_path, kind):
    found = answer(trained(tmp_path / "run", kind=kind), kind=kind)
    assert found.verdict in {"identical", "rounding"}, found.reason


def test_weights_changed_before_the_step_are_stepped(tmp_path):
    assert answer(trained(tmp_path / "run", before=moved)).verdict in {"identical", "rounding"}


def test_projected_weights_are_no_bug(tmp_path):
    run = trained(tmp_path / "run", after=projected)
    alone = answer(run)
    assert alone.verdict == "undecided"
    assert "up.weight at the start of step 1 (rank 0) is not what the optimiser left" in alone.reason
    same = answer(run, trained(tmp_path / "same", after=projected))
    assert same.verdict == "identical"
    other = answer(run, trained(tmp_path / "other"))
    assert other.verdict == "bug"
    assert "and in the baseline it is" in other.reason


def test_a_lost_update_is_a_bug(tmp_path):
    held = {}

    def keep(model, step):
        held[step] = model.up.weight.clone()

    def lose(model, step):
        model.up.weight.copy_(held[step])

    found = answer(trained(tmp_path / "run", before=keep, after=lose))
    assert found.verdict == "bug", found.reason


def penalised(model, step):
    words = torch.randint(0, WORDS, (4, 5), generator=torch.Generator().manual_seed(step))
    out = model(words)
    (grad,) = torch.autograd.grad(out.square().mean(), model.up.weight, create_graph=True)
    return functional.cross_entropy(out.flatten(0, 1), words.flatten()) + grad.square().sum()


def test_differentiated_gradients_are_left_open(tmp_path):
    found = answer(trained(tmp_path / "run", loss=penalised))
    assert found.verdict == "undecided"
    assert "create_graph=True" in found.reason


def normed():
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def gone_back(folder, restored):
    """What is said of a trainer that goes back to its first weights, with its buffers or without."""
    model, optimizer = normed()
    watcher = watch(model, optimizer, out=folder, level="tensors")
    saved = {name: held.clone() for name, held in model.state_dict().items()}
    kept = dict(model.named_buffers()) if restored == "weights" else ()
    for step in range(4):
        if step == 3:
            model.load_state_dict({n: held for n, held in saved.items() if n not in kept}, strict=False)
        drawn = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))
        model(drawn).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()
    model, optimizer = normed()
    return compare(folder, None, Options(prove=partial(prove, model=model, optimizer=optimizer)))


@pytest.mark.parametrize(
    ("restored", "verdict"), [("weights", "undecided"), ("weights and buffers", "identical")]
)
@pytest.mark.quick(1)
def test_buffers_left_when_going_back_are_open(tmp_path, restored, verdict):
    found = gone_back(tmp_path / "run", restored)
    assert found.verdict == verdict, found.reason
    named = "but not from its buffers (1.num_batches_tracked, 1.running_mean, 1.running_var)"
    assert (named in found.reason) == (verdict == "undecided")
