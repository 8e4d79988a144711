"""Learning rates of parameter groups: told, doubted where one group stands still or lags, proved by a scheduler."""

import warnings
from functools import partial

import pytest
import torch
from torch import nn

from numerics import Watcher, watch
from numerics.comparison.compare import Options, compare
from numerics.local.model_source import build
from numerics.local.proof import prove
from numerics.local.updates.learning_rates import unlike_schedules
from numerics.report.json import compare_document
from numerics.report.text import compare_text
from tracekit.errors import InputError

HALVED = [0.1, 0.05, 0.025, 0.0125]


@pytest.mark.parametrize(
    "groups",
    [
        [HALVED, [3 * r for r in HALVED]],
        [[0.1] * 4, [0.2] * 4],
        [HALVED, [0.0] * 4],
        [[0.0, 0.1, 0.2, 0.3], [0.0, 0.2, 0.4, 0.6]],
        [[1.0, 0.75, 0.5, 0.25], [0.55, 0.43, 0.31, 0.19]],
        [HALVED, [0.1, 0.09, 0.02, 0.011]],
        [HALVED],
        [[0.1], [0.2]],
    ],
    ids=["multiples", "constant", "frozen", "warm-up", "common floor", "own", "one group", "one step"],
)
def test_schedules_of_their_own_raise_no_doubt(groups):
    assert not unlike_schedules({n: dict(enumerate(rates)) for n, rates in enumerate(groups)})


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ([0.1] * 4, "group 1 does not change (0.1 in every step) while that of group 0 changes"),
        ([0.1, *HALVED[:-1]], "group 1 (0.1, 0.1, 0.05, 0.025) comes 1 step later than that of group 0"),
        ([0.3, 0.3, 0.3, 0.15], "comes 2 steps later"),
    ],
)
def test_a_group_left_behind_is_doubted(second, said):
    (text,) = unlike_schedules({0: dict(enumerate(HALVED)), 1: dict(enumerate(second))})
    assert said in text


def test_a_straight_warm_up_one_step_late_is_doubted():
    lead, late = [0.1, 0.2, 0.3, 0.4], [0.1, 0.1, 0.2, 0.3]
    (text,) = unlike_schedules({0: dict(enumerate(lead)), 1: dict(enumerate(late))})
    assert "group 1 (0.1, 0.1, 0.2, 0.3) comes 1 step later" in text


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.down(self.up(x).tanh())


def made():
    torch.manual_seed(3)
    model = Two()
    return model, torch.optim.AdamW(
        [{"params": model.up.parameters()}, {"params": model.down.parameters(), "lr": 0.02}], lr=0.01
    )


def scheduled(still=False):
    """The model, its optimiser, and a scheduler under which the second group halves its rate as well, or does not."""
    model, optimizer = made()
    shapes = [lambda n: 0.5**n, lambda n: 1.0 if still else 0.5**n]
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, shapes)


def trained(out, *, stale=False, begin=0, still=False):
    """A run of three steps from `begin` on, whose second group is left behind where `stale`."""
    model, optimizer, schedule = scheduled(still)
    watcher = None
    for step in range(begin + 3):
        if step == begin:
            watcher = watch(model, optimizer, out=out, level="tensors")
        x = torch.randn(5, 4, generator=torch.Generator().manual_seed(step))
        model(x).square().mean().backward()
        if stale:
            optimizer.param_groups[1]["lr"] = 0.02
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    watcher.close()
    return out


def answered(run, function):
    built = build(f"tests.numerics.local.test_learning_rates:{function}")
    proving = partial(prove, model=built.model, optimizer=built.optimizer, schedule=built.schedule)
    return compare(run, None, Options(prove=proving))


def test_rates_without_a_scheduler_are_not_checked(tmp_path):
    found = answered(trained(tmp_path / "run"), "made")
    assert found.verdict == "identical"
    assert "; not checked: the loss scale, the loss, learning rates, the data, " in found.reason
    assert any(text.startswith("learning rates: they were taken") for text in found.not_checked)
    assert compare_document(found)["not_checked"] == list(found.not_checked)
    assert "not checked:\n  - the loss scale: " in compare_text(found)
    assert compare_text(found).startswith(
        "IDENTICAL but for the loss scale, the loss, learning rates, the data and what it starts from ("
    )
    told = "learning rates: group 0: 0.01, 0.005, 0.0025; group 1: 0.02, 0.01, 0.005"
    assert told in found.notes


def test_a_stale_group_is_undecided_without_a_scheduler(tmp_path):
    found = answered(trained(tmp_path / "run", stale=True), "made")
    assert found.verdict == "undecided"
    assert "group 1 does not change (0.02 in every step)" in found.reason
    assert "return the scheduler too" in found.next


@pytest.mark.parametrize("begin", [0, 5])
def test_a_scheduler_proves_the_stale_group(tmp_path, begin):
    found = answered(trained(tmp_path / "run", stale=True, begin=begin), "scheduled")
    assert (found.verdict, found.proof) == ("bug", "local")
    place = found.first_divergence
    assert (place.tensor, place.phase, place.ranks) == ("optimizer.lr.1", "step", (0,))
    assert place.step == (0 if begin else 1)
    assert "group 1 is stepped by 0.02, and the scheduler gives" in found.explanation


@pytest.mark.parametrize("begin", [0, 5])
@pytest.mark.parametrize("still", [False, True])
@pytest.mark.quick(1)
def test_a_scheduler_settles_what_is_meant(tmp_path, begin, still):
    run = trained(tmp_path / "run", begin=begin, still=still)
    found = answered(run, "kept_still" if still else "scheduled")
    assert found.verdict == "identical"
    assert not any(text.startswith("learning rates") for text in found.not_checked)


def test_moments_of_a_training_that_goes_on_are_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(Watcher, "_moments", later(Watcher._moments))
    found = answered(trained(tmp_path / "run", begin=5), "scheduled")
    assert found.verdict == "identical"
    assert any("went on from moments that were not recorded" in text for text in found.not_checked)


def later(recorded):
    """What records the moments, but for those before the first step."""
    return lambda watcher, phase, step: recorded(watcher, phase, step) if step >= 0 else None


def kept_still():
    return scheduled(still=True)


def by_momentum():
    model, _ = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def test_a_run_that_goes_on_uncounted_is_not_accused(tmp_path):
    model, optimizer, schedule = by_momentum()
    watcher = None
    for step in range(7):
        if step == 4:
            watcher = watch(model, optimizer, out=tmp_path / "run", level="tensors")
        model(torch.ones(3, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    watcher.close()
    found = answered(tmp_path / "run", "by_momentum")
    assert found.verdict == "identical"
    assert any("none of them is the scheduler's" in text for text in found.not_checked)


def test_the_scheduler_is_left_as_it_was(tmp_path):
    run = trained(tmp_path / "run")
    built = build("tests.numerics.local.test_learning_rates:scheduled")
    proving = partial(prove, model=built.model, optimizer=built.optimizer, schedule=built.schedule)
    with warnings.catch_warnings(action="error"):
        assert [compare(run, None, Options(prove=proving)).verdict for _ in range(2)] == ["identical"] * 2


def of_a_loss():
    model, optimizer = made()
    return model, optimizer, torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)


def test_a_scheduler_that_asks_for_a_loss_proves_nothing(tmp_path):
    found = answered(trained(tmp_path / "run"), "of_a_loss")
    assert found.verdict == "identical"
    told = "could not be stepped without its trainer (TypeError: "
    assert any(told in text and "metrics" in text for text in found.not_checked)


def of_another():
    model, optimizer, _ = scheduled()
    return model, optimizer, scheduled()[2]


def test_a_scheduler_of_another_optimiser_is_refused():
    with pytest.raises(InputError, match="with the optimiser's scheduler behind them"):
        build("tests.numerics.local.test_learning_rates:of_another")
