"""Random numbers that repeat: a mask for all steps is a bug, whatever holds the generator; sound trainers are not."""

import copy
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from numerics import watch
from numerics.comparison.compare import Options, compare
from numerics.local.draws.dropout_masks import Dropped, plausible
from numerics.local.proof import prove
from numerics.local.repeated_draws import same_elements
from tests.marks import quick_first

WORDS, WIDTH, LENGTH = 16, 24, 8


class Net(nn.Module):
    def __init__(self, inline=False, chance=0.1):
        super().__init__()
        self.words, self.mix, self.head = (
            nn.Embedding(WORDS, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WORDS),
        )
        self.drop, self.inline = nn.Dropout(0.0 if inline else chance), inline

    def forward(self, ids):
        x = self.drop(self.words(ids))
        x = functional.dropout(x, 0.1, self.training) if self.inline else x
        return self.head(functional.gelu(self.mix(x)))


def made(**sizes):
    torch.manual_seed(3)
    model = Net(**sizes)
    return model, torch.optim.AdamW(model.parameters(), lr=1e-2)


def fork_around(module, seeds):
    """Let a module draw in a fork of the generator, seeded again for each call."""
    inner, calls = module.forward, [0]

    def forward(x):
        calls[0] += 1
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seeds(calls[0]))
            return inner(x)

    module.forward = forward


class Trainer:
    """A training loop of one process; `change` says what it does to its random numbers, or to its model."""

    def __init__(self, change):
        self.change = change
        self.model, self.optimizer = made(inline=change.startswith("inline"))
        torch.manual_seed(50)
        if "forked" in change:
            fork_around(
                self.model if "inline" in change else self.model.drop,
                lambda call: call if "again" in change else 1,
            )
        if "factor" in change:
            self.model.mix.forward = lambda x, inner=self.model.mix.forward: inner(x) * 1.01
        if "other share" in change:
            self.model.drop.p = 0.4
        if "switched off" in change:
            self.model.drop.p = 0.0
        self.saved = None

    def before(self, step):
        if "reseeded by step" in self.change:
            torch.manual_seed(step)
        if "reseeded alike" in self.change:
            torch.manual_seed(9)
        if "every other" in self.change and step % 2 == 0:
            torch.manual_seed(9)
        if "warm-up" in self.change:
            self.optimizer.param_groups[0]["lr"] = 1e-2 * step
        if "went back" in self.change and step == ("to the start" not in self.change):
            self.saved = (
                copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict())),
                torch.get_rng_state(),
            )
        if "went back" in self.change and step == 3:
            self.model.load_state_dict(self.saved[0][0])
            torch.set_rng_state(self.saved[1])
            if "without moments" not in self.change:
                self.optimizer.load_state_dict(self.saved[0][1])

    def run(self, out, steps):
        twice = "twice" in self.change
        watcher = watch(self.model, self.optimizer, micro_batches=1 + twice, out=out, level="tensors")
        for step in range(steps):
            self.before(step)
            state = torch.get_rng_state()
            for number in range(1 + twice):
                if "drawn on" not in self.change:
                    torch.set_rng_state(state)
                seed = step + 100 * (number if "unlike" in self.change else 0)
                ids = torch.randint(0, WORDS, (4, LENGTH), generator=torch.Generator().manual_seed(seed))
                functional.cross_entropy(self.model(ids).flatten(0, 1), ids.flatten()).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        watcher.close()


def answered(tmp_path, change, steps=3):
    Trainer(change).run(tmp_path / "run", steps)
    model, optimizer = made(inline=change.startswith("inline"))
    return compare(tmp_path / "run", None, Options(prove=partial(prove, model=model, optimizer=optimizer)))


REPEATING = [
    ("reseeded alike", 2, "drop.out", "in step 1 it drops the very elements that it dropped in step 0"),
    ("forked alike", 2, "drop.out", "in step 1 it drops"),
    ("inline, reseeded alike", 2, "rng.cpu", "begin with the state that step 0 began with"),
    ("every other", 3, "drop.out", "in step 2 it drops the very elements that it dropped in step 0"),
    ("warm-up from 0, reseeded alike", 3, "drop.out", "in steps 1, 2 it drops"),
]
SOUND = [
    ("forked again", 2),
    ("twice from the same inputs", 2),
    ("went back", 4),
    ("went back to the start", 4),
    ("", 3),
    ("inline", 3),
    ("reseeded by step", 3),
    ("inline, reseeded by step", 3),
    ("inline, went back", 5),
    ("reseeded alike", 1),
]
WRONG = [
    ("forked again, a factor of 1.01", "mix.out"),
    ("inline, a factor of 1.01", "mix.bias.grad"),
    ("other share", "drop.out"),
    ("forked again, other share", "drop.out"),
    ("switched off", "drop.out"),
]


@pytest.mark.quick(2)
@pytest.mark.parametrize(("change", "steps", "tensor", "words"), quick_first(3, REPEATING))
def test_draws_that_do_not_move_on_are_bugs(tmp_path, change, steps, tensor, words):
    found = answered(tmp_path, change, steps)
    assert (found.verdict, found.first_divergence.tensor) == ("bug", tensor), found.reason
    assert words in found.explanation
    assert found.first_divergence.ranks == (0,)
    assert "do not move on" in found.reason


@pytest.mark.quick(2)
@pytest.mark.parametrize(("change", "steps"), quick_first(3, SOUND))
def test_sound_draws_are_not_accused(tmp_path, change, steps):
    found = answered(tmp_path, change, steps)
    assert found.verdict == "identical", found.reason
    assert any("masks" in note for note in found.notes) == ("forked" in change)


def test_masks_of_another_generator_are_told(tmp_path):
    found = answered(tmp_path, "forked again", 2)
    assert any("2 of 2 masks are not what the recorded generator draws" in note for note in found.notes)


def test_inline_draws_of_another_generator_are_left_open(tmp_path):
    found = answered(tmp_path, "inline, forked again", 2)
    assert found.verdict == "undecided"
    assert "random numbers that the recorded state of the generator does not give" in found.reason


@pytest.mark.parametrize(("change", "tensor"), quick_first(2, WRONG))
def test_wrong_values_beside_dropout_are_called(tmp_path, change, tensor):
    found = answered(tmp_path, change, 2)
    assert (found.verdict, found.first_divergence.tensor) == ("bug", tensor), found.reason


def test_micro_batches_that_drop_alike_leave_it_open(tmp_path):
    found = answered(tmp_path, "twice from unlike inputs", 2)
    assert found.verdict == "undecided"
    assert "micro-batches 0 and 1 of data-parallel rank 0 drop the same elements of drop.out" in found.reason


@pytest.mark.parametrize(
    "change", quick_first(1, ["went back without moments", "went back to the start without moments"])
)
def test_going_back_without_the_moments_is_a_bug(tmp_path, change):
    found = answered(tmp_path, change, 4)
    assert (found.verdict, found.first_divergence.step) == ("bug", 3), found.reason
    assert "the optimiser went on from its later moments: they were not restored" in found.explanation


class Skipping(nn.Module):
    """A layer that is left out for half of the sequences, by its own code: few random numbers, which chance repeats."""

    def __init__(self):
        super().__init__()
        self.words, self.mix, self.head = (
            nn.Embedding(WORDS, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WORDS),
        )

    def forward(self, ids):
        x = self.words(ids)
        return self.head(x + self.mix(x) * torch.empty(len(x), 1, 1).bernoulli_(0.5))


@pytest.mark.parametrize("batch", quick_first(1, [2, 64]))
def test_few_draws_of_a_fork_are_no_proof(tmp_path, batch):
    torch.manual_seed(4)
    model = Skipping()
    start = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fork_around(model, lambda call: 7 * call)
    torch.manual_seed(1)
    watcher = watch(model, optimizer, out=tmp_path / "run", level="tensors")
    for step in range(3):
        ids = torch.randint(0, WORDS, (batch, LENGTH), generator=torch.Generator().manual_seed(step))
        functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()
    other = torch.optim.SGD(start.parameters(), lr=0.1)
    found = compare(tmp_path / "run", None, Options(prove=partial(prove, model=start, optimizer=other)))
    assert found.verdict == "undecided", found.reason


def mask(kept, nonzero=None, chance=0.1):
    kept = np.array(kept, bool)
    return Dropped(
        "drop.out", "drop", 0, chance, kept, np.ones_like(kept) if nonzero is None else nonzero, True
    )


def test_few_equal_elements_may_be_chance():
    kept = np.random.default_rng(1).random(200) > 0.1
    assert same_elements(mask(kept), mask(kept), 1)
    assert not same_elements(mask(kept[:60]), mask(kept[:60]), 1)
    assert not same_elements(mask(kept, chance=1e-4), mask(kept, chance=1e-4), 1)
    assert not same_elements(mask(kept), mask(~kept), 1)


def test_elements_that_were_zero_before_tell_nothing():
    kept = np.random.default_rng(2).random(400) > 0.1
    other, nonzero = kept.copy(), np.ones(400, bool)
    other[:5], nonzero[:5] = ~kept[:5], False
    assert same_elements(mask(kept), mask(other, nonzero), 1)
    assert not same_elements(mask(kept, ~nonzero), mask(other, nonzero), 1)


def test_a_share_that_no_draw_has_is_no_dropout():
    assert plausible(100, 1000, 0.1)
    assert not plausible(0, 1000, 0.1)
    assert not plausible(400, 1000, 0.1)
    assert not plausible(0, 0, 0.1)
