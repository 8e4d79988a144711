"""Explanations of the local proof: right values in the wrong place, and what is never claimed."""

import pytest
import torch

from numerics.columns import Names, read_columns
from numerics.comparison.proofs.local_explanation import explanation_of
from numerics.local.bounds.bounded import known
from numerics.local.forced_pass import Check
from numerics.local.gradients.gradient_checks import Reduced, check_gradients
from numerics.local.gradients.parameter_gradients import Sum, _in_words
from numerics.local.judgement import Judged, Standing
from numerics.local.local_check import LocalCheck
from numerics.local.relations import bias_added, dropped_again, relation
from numerics.local.updates.optimizer_step import other_count, repeat_step
from numerics.record.recorder import Recorder
from numerics.store import open_capture

VALUE = torch.randn((12, 5), generator=torch.Generator().manual_seed(8))


def swapped(value):
    return value[[0, 2, 1, *range(3, 12)]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (swapped, "moved: rows 1 and 2 along dimension 0 are swapped"),
        (
            lambda v: v[torch.randperm(12, generator=torch.Generator().manual_seed(1))],
            "moved: the rows along dimension 0 are permuted",
        ),
        (lambda v: v.roll(1, 0), "moved: shifted by -1 along dimension 0"),
        (torch.zeros_like, "the value is missing: all elements are zero"),
        (
            lambda v: v.where(torch.arange(5) != 3, torch.nan),
            "12 elements are infinite or not a number, none ought to be",
        ),
        (lambda v: v + (torch.arange(12) == 4)[:, None], "differs only at index 4 of 12 along dimension 0"),
        (lambda v: v + 1, ""),
        (lambda v: 2 * v, ""),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_relations_hold_in_every_bit(change, words, dtype):
    value = VALUE.to(dtype)
    assert relation(change(value), value) == words


def test_few_elements_have_no_relation():
    assert relation(torch.tensor([2.0, 1.0]), torch.tensor([1.0, 2.0])) == ""


def dropped(seed):
    return VALUE * (torch.rand(VALUE.shape, generator=torch.Generator().manual_seed(seed)) > 0.3)


@pytest.mark.parametrize(
    ("recorded", "computed", "named"),
    [
        (dropped(1), dropped(2), True),
        (VALUE, dropped(1), False),  # left out
        (dropped(1) * dropped(2).bool(), dropped(1), False),  # applied twice
        (dropped(1) * 1.5, dropped(2), False),
        (dropped(1), dropped(1), False),
    ],
)
def test_only_another_mask_is_recomputation(recorded, computed, named):
    assert ("recomputation" in dropped_again(recorded, computed)) == named


BIAS = torch.tensor([0.5, -1.0, 0.25, 2.0, 0.0])


@pytest.mark.parametrize(
    ("away", "words"),
    [
        (2 * BIAS, "its bias is added 3 times, once by each of the 3 ranks that share it"),
        (BIAS, "its bias is added 2 times"),
        (-BIAS, "its bias is missing"),
        (BIAS / 2, ""),
        (BIAS.roll(1), ""),
        (VALUE, ""),
        (torch.zeros(5), ""),
    ],
)
@pytest.mark.parametrize("channels", [-1, 1])
def test_a_bias_is_counted(away, words, channels):
    whole = torch.stack([VALUE, VALUE + 1])
    recorded, computed = ((one.movedim(-1, channels)) for one in (whole + away, whole))
    assert bias_added(recorded, computed, BIAS, 3) == words


class Gradients:
    narrow_format = None

    """A recorded step of one place that holds these gradients."""

    def __init__(self, held):
        self.step, self.recorded, self.held, self.model = 0, self, held, torch.nn.Module()
        self.ties = {}
        self.steps = [0]

    def parameter(self, _name, _shape):
        return None

    def gradient(self, name, _shape):
        return self.held[name]

    def places(self, _step):
        return [(0, 0)]

    def rows(self, *_):
        return []

    def of_expert(self, _name):
        return False

    def gradient_copies(self, _name, _shape):
        return []


def test_swapped_gradients_are_named():
    names = [f"w{n}" for n in range(6)]
    values = {
        name: torch.randn(40, generator=torch.Generator().manual_seed(n)) for n, name in enumerate(names)
    }
    sums = {name: Sum() for name in names}
    for name, total in sums.items():
        total.add((0, 0), values[name], known(values[name]))
    held = {f"{name}.grad": value for name, value in values.items()}
    held["w1.grad"], held["w4.grad"] = held["w4.grad"], held["w1.grad"]
    found = check_gradients(Gradients(held), sums, Reduced())
    told = {one.check.tensor: one.check.judged.relation for one in found if one.check.judged.relation}
    assert told == {"w1.grad": "equals the gradient of w4", "w4.grad": "equals the gradient of w1"}


def explained(folder, values):
    """Explanation of a tensor that is wrong in the last of these steps."""
    with Recorder(folder, 0, 1, level="tensors") as recorder:
        for step, value in enumerate(values):
            recorder.record("x.out", value, step=step, phase="forward", kind="activation", micro_batch=0)
    judged = Judged(Standing.BEYOND, 9.0, 60, 60)
    wrong = LocalCheck(len(values) - 1, (0, 0), Check("x.out", "x", "forward", judged))
    return explanation_of(read_columns(open_capture(folder), Names()), wrong)


def test_stale_values_say_by_how_many_steps(tmp_path):
    assert explained(tmp_path / "a", [VALUE, 2 * VALUE, 3 * VALUE, VALUE]) == (
        "stale by 3 steps: the value of step 0"
    )
    assert explained(tmp_path / "b", [VALUE, 2 * VALUE]) is None


@pytest.mark.parametrize("counted", [1, 4, 5, 6, None])
def test_the_optimisers_count_of_steps_is_told(counted):
    drawn = torch.Generator().manual_seed(3)
    model = torch.nn.Linear(6, 5)
    held = {name: torch.randn(p.shape, generator=drawn) for name, p in model.named_parameters()}
    grads = {f"{name}.grad": torch.randn(p.shape, generator=drawn) for name, p in model.named_parameters()}
    before = dict(held)
    for name, value in held.items():
        before |= {f"{name}.exp_avg": value / 9, f"{name}.exp_avg_sq": value.square() / 9}
        before[f"{name}.step"] = torch.tensor(4.0)
    keys = {name: ["exp_avg", "exp_avg_sq", "step"] for name in held}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    after = {}

    def made(counts):
        start = before | {f"{name}.step": torch.tensor(counts - 1.0) for name in held}
        repeat_step(
            model, optimizer, lambda n, _: start.get(n), lambda n, _: grads[n], lambda *_: None, {}, keys
        )
        found = {name: p.detach().clone() for name, p in model.named_parameters()}
        for name, p in model.named_parameters():
            found |= {f"{name}.{key}": value.clone() for key, value in optimizer.state[p].items()}
        return found

    after = made(counted or 5)
    if counted is None:
        after["weight"] = after["weight"] + 1

    def stepped(found):
        return repeat_step(
            model, optimizer, found, lambda n, _: grads[n], lambda n, _: after.get(n), {}, keys
        )

    def recorded(name, _shape):
        return before.get(name)

    words = other_count(recorded, lambda n, _: after.get(n), stepped, stepped(recorded))
    assert words == ("" if counted in {5, None} else f"the optimiser counts step {counted}, not 5")


def test_fitted_factors_are_told_only_against_most():
    shares = [((rank, number), 1.5 - number) for rank in (0, 1) for number in (0, 1)]
    assert _in_words(shares, fitted=True) == ""
    assert "0.5 times the share of dp rank 0, micro-batch 1" in _in_words(shares, fitted=False)
    assert "3 times the share of dp rank 1" in _in_words(
        [*shares[:1], ((2, 0), 1.5), ((1, 0), 4.5)], fitted=True
    )
