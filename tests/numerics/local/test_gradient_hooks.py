"""Hooks of a trainer on a parameter's gradient, before and after `watch`."""

from functools import partial

import torch
from torch import nn
from torch.nn import functional

from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove
from numerics.record.watch import watch

WORDS, WIDTH, STEPS = 24, 6, 3


def build():
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WORDS)
    )
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def halve(model):
    return model[3].weight.register_hook(lambda grad: grad / 2)


def build_hooked():
    model, optimizer = build()
    halve(model)
    return model, optimizer


def trained(folder, make=build, once=None, each=None):
    """A capture of three steps; `once` gets the model after `watch`, `each` before every step."""
    model, optimizer = make()
    watcher = watch(model, optimizer, out=folder, level="tensors")
    if once is not None:
        once(model)
    for step in range(STEPS):
        if each is not None:
            each(model)
        words = torch.randint(0, WORDS, (4, 5), generator=torch.Generator().manual_seed(step))
        functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()
    return folder


def answer(run, baseline=None, make=build):
    model, optimizer = make()
    return compare(run, baseline, Options(prove=partial(prove, model=model, optimizer=optimizer)))


def test_hook_after_watch_is_left_open(tmp_path):
    found = answer(trained(tmp_path / "run", once=halve))
    assert found.verdict == "undecided", found.explanation
    assert "registers after `watch`" in str(found)


def test_hook_of_both_runs_is_left_open(tmp_path):
    run, baseline = (trained(tmp_path / name, once=halve) for name in ("run", "baseline"))
    assert answer(run, baseline).verdict != "bug"


def test_removed_hook_leaves_gradients_checked(tmp_path):
    found = answer(trained(tmp_path / "run", once=lambda model: halve(model).remove()))
    assert found.verdict == "identical", found.explanation


def test_hooks_that_grow_by_step_are_a_bug(tmp_path):
    baseline = trained(tmp_path / "baseline", once=halve)
    found = answer(trained(tmp_path / "run", each=halve), baseline)
    assert (found.verdict, found.first_divergence.tensor) == ("bug", "3.weight.grad")


def test_hook_that_the_given_model_lacks_is_a_bug(tmp_path):
    found = answer(trained(tmp_path / "run", make=build_hooked))
    assert (found.verdict, found.first_divergence.tensor) == ("bug", "3.weight.grad")


def test_hook_that_the_given_model_has_is_no_bug(tmp_path):
    found = answer(trained(tmp_path / "run", build_hooked), make=build_hooked)
    assert found.verdict == "identical", found.explanation


def test_hook_that_needs_other_ranks_is_left_open(tmp_path):
    def build_reducing():
        model, optimizer = build_hooked()
        model[3].weight.register_hook(lambda grad: torch.distributed.all_reduce(grad) or grad)
        return model, optimizer

    found = answer(trained(tmp_path / "run", build_hooked), make=build_reducing)
    assert found.verdict == "undecided", found.explanation
    assert "a hook of the given model" in str(found)
