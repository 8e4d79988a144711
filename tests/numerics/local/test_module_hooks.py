"""Hooks of a model that change what a module returns or gets: the proof calls them where the run did."""

import pytest
import torch

from tests.numerics.local.test_gradient_hooks import answer, build, trained

HOOKS = {
    "output": lambda model: model[2].register_forward_hook(lambda _m, _i, out: 2 * out),
    "input": lambda model: model[3].register_forward_pre_hook(lambda _m, given: (2 * given[0],)),
    "gradient": lambda model: model[2].register_full_backward_hook(lambda _m, grads, _o: (2 * grads[0],)),
}


def hooked(kind, more=lambda model: None):
    def make():
        model, optimizer = build()
        more(model)
        HOOKS[kind](model)
        return model, optimizer

    return make


def dropping(model):
    model[2] = torch.nn.Sequential(model[2], torch.nn.Dropout(0.3))
    model[2][1].register_forward_hook(lambda _m, _i, out: 3 * out)


@pytest.mark.quick(3)
@pytest.mark.parametrize("kind", HOOKS)
@pytest.mark.parametrize("behind", [False, True])
def test_hooks_of_the_model_are_healthy(tmp_path, kind, behind):
    once = HOOKS[kind] if behind else None
    run = trained(tmp_path / "run", build if behind else hooked(kind), once)
    found = answer(run, make=hooked(kind))
    assert found.verdict == "identical", found.reason


def test_hooks_behind_dropout_get_what_was_dropped(tmp_path):
    run = trained(tmp_path / "run", hooked("output", dropping))
    found = answer(run, make=hooked("output", dropping))
    assert found.verdict in {"identical", "rounding"}, found.reason


@pytest.mark.quick(2)
@pytest.mark.parametrize("kind", HOOKS)
def test_a_hook_that_the_model_lacks_is_a_bug(tmp_path, kind):
    assert answer(trained(tmp_path / "run", hooked(kind))).verdict == "bug"
