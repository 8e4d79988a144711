"""Updates that a trainer skips, makes without gradients, or made before its record began."""

from dataclasses import dataclass
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove
from numerics.record.watch import watch

WORDS, WIDTH, STEPS, SKIPPED = 24, 6, 3, 1


class Lion(torch.optim.Optimizer):
    """An optimiser of a user's own: a momentum, and no count of steps."""

    def __init__(self, parameters, lr=1e-3):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for p in (p for group in self.param_groups for p in group["params"] if p.grad is not None):
            held = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
            p.add_((0.9 * held + 0.1 * p.grad).sign(), alpha=-self.param_groups[0]["lr"])
            held.lerp_(p.grad, 0.05)


OPTIMIZERS = {
    "sgd": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "lion": Lion,
    "adamw": partial(torch.optim.AdamW, lr=0.01),
}


class Model(nn.Module):
    """Words to words."""

    def __init__(self):
        super().__init__()
        self.words, self.up, self.head = (
            nn.Embedding(WORDS, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, WORDS),
        )

    def forward(self, words):
        return self.head(torch.tanh(self.up(self.words(words))))


def build(kind="sgd"):
    torch.manual_seed(2)
    model = Model()
    return model, OPTIMIZERS[kind](model.parameters())


@dataclass
class Trainer:
    """One process that trains; `habit` says what it does in step SKIPPED, `first` where its record begins."""

    kind: str = "sgd"
    habit: str = ""
    first: int = 0
    micro: int = 2

    def run(self, folder):
        model, optimizer = build(self.kind)
        watcher = None
        for step in range(STEPS):
            if step == self.first:
                if "lost" in self.habit:
                    optimizer.state.clear()
                watcher = watch(model, optimizer, micro_batches=self.micro, out=folder, level="tensors")
            self.backwards(model, step)
            if "zeros" in self.habit or "none" in self.habit:
                optimizer.zero_grad(set_to_none="none" in self.habit)
            if not ("skips" in self.habit and step == SKIPPED):
                optimizer.step()
            optimizer.zero_grad()
            self.after(model, optimizer, step)
        watcher.close()
        return folder

    def backwards(self, model, step):
        words = torch.randint(0, WORDS, (8, 5), generator=torch.Generator().manual_seed(step))
        micro = 1 if "last group" in self.habit and step == SKIPPED else self.micro
        for part in words.chunk(micro):
            loss = functional.cross_entropy(model(part).flatten(0, 1), part.flatten())
            overflow = float("inf") if "overflows" in self.habit and step == SKIPPED else 1.0
            (loss * overflow / (self.micro if "usual" in self.habit else micro)).backward()

    def after(self, model, optimizer, step):
        if "forgets" in self.habit and step == SKIPPED:
            optimizer.state.clear()
        if "writes" in self.habit and step == SKIPPED:
            model.up.weight.data += 0.01


def answer(run, baseline=None, kind="sgd", *, model=True):
    made, optimizer = build(kind)
    proving = partial(prove, model=made, optimizer=optimizer) if model else None
    return compare(run, baseline, Options(prove=proving))


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_update_behind_a_skipped_one_is_checked(tmp_path, kind):
    found = answer(Trainer(kind, "skips").run(tmp_path / "run"), kind=kind)
    assert found.verdict in {"identical", "rounding"}, found.reason
    assert not [text for text in found.not_checked if text.startswith("the optimiser's step")]


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_lost_in_a_skipped_step_is_a_bug(tmp_path, kind):
    found = answer(Trainer(kind, "skips, forgets").run(tmp_path / "run"), kind=kind)
    assert found.verdict == "bug"
    assert "is not what the optimiser makes of the recorded gradient and state" in found.reason


@pytest.mark.quick(1)
@pytest.mark.parametrize("model", [True, False])
def test_weights_written_in_a_skipped_step_are_seen(tmp_path, model):
    run = Trainer(habit="skips, writes").run(tmp_path / "run")
    said = (
        "up.weight at the start of step 2 (rank 0) is not what the step before, without an update, began with"
    )
    alone = answer(run, model=model)
    assert alone.verdict == "undecided"
    assert said in alone.reason
    beside = answer(run, Trainer(habit="skips").run(tmp_path / "baseline"), model=model)
    assert beside.verdict == "bug"
    assert said in beside.reason


@pytest.mark.quick(1)
@pytest.mark.parametrize("model", [True, False])
def test_an_update_of_the_baseline_alone_is_a_bug(tmp_path, model):
    runs = Trainer(habit="skips").run(tmp_path / "run"), Trainer().run(tmp_path / "baseline")
    found = answer(*runs, model=model)
    assert found.verdict == "bug"
    assert "the run makes no update in step 1, and the baseline makes one" in found.reason
    assert "the baseline makes no update in step 1, and the run" in answer(*runs[::-1], model=model).reason


@pytest.mark.quick(1)
@pytest.mark.parametrize("model", [True, False])
def test_an_overflow_of_one_run_is_open(tmp_path, model):
    run = Trainer(habit="skips, overflows").run(tmp_path / "run")
    found = answer(run, Trainer().run(tmp_path / "baseline"), model=model)
    assert found.verdict == "undecided"
    assert "gradients of the run are not finite there, as under a loss scale" in found.reason


@pytest.mark.parametrize(
    ("habit", "said"),
    [
        ("none", "the optimiser stepped while no parameter had a gradient"),
        ("zeros", "the optimiser gets zeros for all gradients in step 0"),
        ("last group, usual", "step 1 has 1 of 2 micro-batches, and its gradients are 0.5 times a mean's"),
    ],
)
def test_gradients_that_came_to_less_are_open(tmp_path, habit, said):
    found = answer(Trainer(habit=habit).run(tmp_path / "run"))
    assert found.verdict == "undecided"
    assert said in found.reason


def test_cleared_gradients_explain_the_difference(tmp_path):
    baseline = Trainer().run(tmp_path / "baseline")
    for habit, said in (
        ("none", "the run makes no update in step 0"),
        ("zeros", "cleared before the update"),
    ):
        found = answer(Trainer(habit=habit).run(tmp_path / habit), baseline)
        assert found.verdict == "bug"
        assert said in found.reason


def test_a_last_group_by_its_own_count_is_sound(tmp_path):
    found = answer(Trainer(habit="last group").run(tmp_path / "run"))
    assert found.verdict in {"identical", "rounding"}, found.reason


@pytest.mark.quick(1)
@pytest.mark.parametrize("model", [True, False])
def test_a_resumed_run_of_another_layout_is_no_bug(tmp_path, model):
    baseline = Trainer(micro=1).run(tmp_path / "baseline")
    found = answer(Trainer(first=2).run(tmp_path / "run"), baseline, model=model)
    assert found.verdict == "undecided"
    assert "it goes on in step 2 from weights that are not the baseline's after step 1" in found.reason
    lost = answer(Trainer(first=2, habit="lost").run(tmp_path / "lost"), baseline, model=model)
    assert lost.verdict == "bug"
    assert "the optimiser's state was not restored: it begins without" in lost.reason


@pytest.mark.slow
def test_a_gradient_of_the_baseline_alone_is_a_bug(tmp_path):
    class Detached(Trainer):
        def backwards(self, model, step):
            model.up.requires_grad_(False)
            super().backwards(model, step)

    found = answer(Detached().run(tmp_path / "run"), Trainer().run(tmp_path / "baseline"))
    assert found.verdict == "bug"
    assert "the baseline's optimiser gets a gradient of up.bias (and of 1 more)" in found.reason


def test_a_fused_optimiser_skips_as_another_does(tmp_path):
    class Scaled(Trainer):
        def run(self, folder):
            model, _ = build()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=self.kind == "fused")
            scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
            watcher = watch(model, optimizer, micro_batches=self.micro, out=folder, level="tensors")
            for step in range(STEPS):
                self.backwards(model, step)
                scaler.scale(torch.zeros(()))
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            watcher.close()
            return folder

    runs = [Scaled(kind, "overflows").run(tmp_path / kind) for kind in ("fused", "plain")]
    assert "no update" not in answer(*runs, kind="adamw").reason


@pytest.mark.quick(1)
@pytest.mark.parametrize("model", [True, False])
def test_a_change_of_the_baseline_alone_is_a_bug(tmp_path, model):
    baseline = Trainer(habit="writes").run(tmp_path / "baseline")
    found = answer(Trainer().run(tmp_path / "run"), baseline, model=model)
    assert found.verdict == "bug"
    assert "in the baseline, up.weight at the start of step 2 (rank 0) is not what" in found.reason


@pytest.mark.slow
def test_sequences_that_fill_up_shares_are_seen(tmp_path):
    class Filled(Trainer):
        def backwards(self, model, step):
            words = torch.randint(0, WORDS, (8, 5), generator=torch.Generator().manual_seed(step))
            words = torch.cat([words, words[:2]]) if self.habit else words
            functional.cross_entropy(model(words).flatten(0, 1), words.flatten()).backward()

    runs = Filled(habit="fills").run(tmp_path / "run"), Filled().run(tmp_path / "baseline")
    for pair, first in ((runs, "the run"), (runs[::-1], "the baseline")):
        found = answer(*pair)
        assert found.verdict == "bug"
        assert f"{first} reads 2 sequences of in.0 in step 0 again" in found.reason


def test_gradients_of_some_micro_batches_alone_are_not_checked(tmp_path):
    class Partly(Trainer):
        def backwards(self, model, step):
            words = torch.randint(0, WORDS, (8, 5), generator=torch.Generator().manual_seed(step))
            for number, part in enumerate(words.chunk(self.micro)):
                model.up.requires_grad_(number == 0)
                loss = functional.cross_entropy(model(part).flatten(0, 1), part.flatten())
                (loss * (2.0 if self.habit else 1.0) / self.micro).backward()
            model.up.requires_grad_(True)

    runs = Partly(habit="doubles").run(tmp_path / "run"), Partly().run(tmp_path / "baseline")
    assert any(
        text.startswith("gradients that only some backwards add to")
        for text in answer(*runs, model=False).not_checked
    )


@pytest.mark.slow
def test_weights_changed_for_a_gradient_alone_are_sound(tmp_path):
    class Beside(Trainer):
        def backwards(self, model, step):
            super().backwards(model, step)
            model.zero_grad()
            with torch.no_grad():
                model.up.weight += 0.01
            super().backwards(model, step)
            with torch.no_grad():
                model.up.weight.copy_(self.kept)

        def after(self, model, optimizer, step):
            self.kept = model.up.weight.detach().clone()

    trainer = Beside()
    trainer.kept = build()[0].up.weight.detach().clone()
    found = answer(trainer.run(tmp_path / "run"))
    assert found.verdict in {"identical", "rounding"}, found.reason
