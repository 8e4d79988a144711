"""Captures of forwards alone, as of an inference engine, and losses that a model keeps beside its output."""

import math
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional

from numerics import Box, Placed, watch
from numerics.comparison.compare import Options, compare
from numerics.local.proof import prove

WORDS, WIDTH, LENGTH, SEQUENCES = 20, 8, 6, 4


class Engine(nn.Module):
    """One layer of attention; with `cached` each call gets the next token and the keys stay."""

    def __init__(self, cached=False):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.head, self.cached, self.kept = nn.Linear(WIDTH, WORDS), cached, None

    def forward(self, words):
        x = self.words(words)
        q, k, v = self.q(x), self.k(x), self.v(x)
        if self.cached:
            self.kept = (
                (k, v)
                if self.kept is None
                else tuple(torch.cat(p, 1) for p in zip(self.kept, (k, v), strict=True))
            )
            k, v = self.kept
        return self.head(x + self.o(self.mixed(q, k, v)))

    def mixed(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=not self.cached)


class ByHand(Engine):
    def mixed(self, q, k, v):
        logits = q @ k.mT / math.sqrt(WIDTH)
        return logits.masked_fill(torch.ones(logits.shape[-2:]).triu(1).bool(), -math.inf).softmax(-1) @ v


class Unmasked(Engine):
    def mixed(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v)


def made(kind=Engine, dtype=torch.float32, **how):
    torch.manual_seed(0)
    return kind(**how).to(dtype).eval()


WORDS_IN = torch.randint(0, WORDS, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(1))


def asked(model, out, parts=1):
    """Capture the model's forwards on all sequences, in so many batches."""
    watcher = watch(model, None, micro_batches=parts, out=out, level="tensors")
    with torch.inference_mode():
        for words in WORDS_IN.chunk(parts):
            model(words)
    watcher.close()
    return out


def decoded(out, fault=False):
    """Capture a model that decodes token by token."""
    model, at = made(cached=True), 0

    def place(_name, value):
        sizes = tuple(value.shape)
        box = Box((0, at, *[0] * (len(sizes) - 2)), sizes)
        return Placed(value, (sizes[0], LENGTH, *sizes[2:]), (box,))

    watcher = watch(model, None, micro_batches=LENGTH, out=out, level="tensors", place=place)
    with torch.inference_mode():
        for at in range(LENGTH):
            if fault and at == 3:
                model.kept = (model.kept[0].roll(1, 1), model.kept[1])
            model(WORDS_IN[:, at : at + 1])
    watcher.close()
    return out


def answered(run, baseline, model=None):
    return compare(
        run, baseline, Options(prove=partial(prove, model=made() if model is None else model, optimizer=None))
    )


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    return asked(made(), tmp_path_factory.mktemp("engine") / "run")


@pytest.mark.parametrize(
    ("model", "parts", "verdict"),
    [
        (made(), 1, "identical"),
        (made(), SEQUENCES, None),
        (made(ByHand), 1, "rounding"),
        (made(Unmasked), 1, "bug"),
    ],
    ids=["same", "one at a time", "by hand", "unmasked"],
)
def test_engine_of_the_same_weights(engine, tmp_path, model, parts, verdict):
    found = answered(asked(model, tmp_path / "run", parts), engine)
    assert found.verdict in ({verdict} if verdict else {"identical", "drift", "rounding"}), found.reason
    assert "learning rates" not in found.reason


def test_forwards_alone_are_undecided_without_the_model(engine, tmp_path):
    found = compare(asked(made(ByHand), tmp_path / "run"), engine)
    assert found.verdict == "undecided"
    assert found.first_divergence.tensor == "o.out"


@pytest.mark.parametrize(("fault", "verdict"), [(False, "identical"), (True, "bug")])
def test_decoding_with_a_cache_is_one_forward(engine, tmp_path, fault, verdict):
    assert answered(decoded(tmp_path / "run", fault), engine).verdict == verdict


class Counting(Engine):
    """Computes another thing with every call."""

    calls = 0

    def forward(self, words):
        self.calls += 1
        return super().forward(words) * self.calls


def test_model_that_keeps_state_is_left_open(tmp_path):
    found = answered(asked(made(Counting), tmp_path / "run", 2), None, made(Counting))
    assert found.verdict == "undecided"
    assert "keeps something from one forward to the next" in found.reason


def test_other_weights_are_no_drift(engine, tmp_path):
    model = made()
    model.head.weight.data[0, 0] += 0.01
    found = answered(asked(model, tmp_path / "run"), engine)
    assert found.verdict == "bug"
    assert found.reason == "head.weight is not the baseline's before the first step: other weights"


def test_weights_in_another_order_are_said(engine, tmp_path):
    """Rows of a projection are in the order of another convention of rotary positions; a later weight is another."""
    model = made()
    model.q.weight.data = model.q.weight.data.flip(0)
    model.head.weight.data[0, 0] += 0.01
    found = answered(asked(model, tmp_path / "run"), engine)
    assert (
        found.reason
        == "q.weight is not the baseline's before the first step: the same numbers in another order"
    )


def test_another_format_of_weights_is_said(engine, tmp_path):
    found = answered(asked(made(dtype=torch.bfloat16), tmp_path / "run"), engine, made(dtype=torch.bfloat16))
    assert found.verdict == "rounding"
    assert "in bfloat16 where the baseline holds it in float32" in found.reason


class Balanced(Engine):
    """Keeps a loss of its own beside the output, as experts do."""

    def forward(self, words):
        out = super().forward(words)
        self.balance = self.q(self.words(words)).softmax(-1).square().mean()
        return out


@pytest.mark.parametrize("weight", [0.0, 0.5])
def test_losses_kept_beside_the_output_are_no_bug(tmp_path, weight):
    model = made(Balanced)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = watch(model, optimizer, out=tmp_path / "run", level="tensors")
    loss = functional.cross_entropy(model(WORDS_IN).flatten(0, 1), WORDS_IN.flatten())
    (loss + weight * model.balance).backward()
    optimizer.step()
    watcher.close()
    whole = made(Balanced)
    proving = partial(prove, model=whole, optimizer=torch.optim.SGD(whole.parameters(), lr=0.1))
    found = compare(tmp_path / "run", None, Options(prove=proving))
    assert found.verdict == "identical", found.reason
    assert weight or "balance, which the model keeps in addition to its output" in found.reason


class Towers(nn.Module):
    """Two towers whose features a contrastive loss compares: the loss reads both outputs."""

    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return functional.normalize(self.image(x), dim=-1), functional.normalize(self.text(x), dim=-1)


@pytest.mark.parametrize("doubled", [False, True])
def test_a_loss_may_read_several_outputs(tmp_path, doubled):
    model = made(Towers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if doubled:
        model.text.weight.register_hook(lambda grad: 2 * grad)
    watcher = watch(model, optimizer, out=tmp_path / "run", level="tensors")
    one, other = model(torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(5)))
    functional.cross_entropy(one @ other.T, torch.arange(4)).backward()
    optimizer.step()
    watcher.close()
    whole = made(Towers)
    proving = partial(prove, model=whole, optimizer=torch.optim.SGD(whole.parameters(), lr=0.1))
    found = compare(tmp_path / "run", None, Options(prove=proving))
    assert found.verdict == ("bug" if doubled else "identical"), found.reason


class Turned(nn.Module):
    """Takes complex numbers, as rotary positions are often kept."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, WIDTH)

    def forward(self, x, turns):
        turned = torch.view_as_complex(self.up(x).unflatten(-1, (-1, 2)).contiguous()) * turns
        return torch.view_as_real(turned).flatten(-2)


def test_complex_inputs_are_recorded(tmp_path):
    model = made(Turned)
    watcher = watch(model, None, out=tmp_path / "run", level="tensors")
    drawn = torch.Generator().manual_seed(3)
    model(
        torch.randn(3, WIDTH, generator=drawn),
        torch.randn(3, WIDTH // 2, 2, generator=drawn).view(3, -1, 2)[..., 0].to(torch.complex64),
    )
    watcher.close()
    assert answered(tmp_path / "run", None, made(Turned)).verdict == "identical"
