"""A gradient whose terms cancel is as small as its rounding: another order of its terms is no bug, a factor is one."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from numerics import watch
from numerics.comparison.compare import compare

IDS, WIDTH, SEQUENCES, LENGTH = 24, 16, 12, 8


class Keys(nn.Module):
    """Attention by one head; the bias of its keys moves all scores of a query alike, so that it has no effect."""

    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        return functional.scaled_dot_product_attention(
            self.query(x), self.key(x), self.value(x), is_causal=True
        )


class Channels(nn.Module):
    """A convolution with a bias, its own or `folded` into the block, that the norm takes off again."""

    def __init__(self, *, folded=False):
        super().__init__()
        self.conv, self.norm = (
            nn.Conv1d(WIDTH, WIDTH, 3, padding=1),
            nn.GroupNorm(1 if folded else WIDTH, WIDTH),
        )
        self.folded = nn.Parameter(torch.ones(1, 1)) if folded else None

    def forward(self, x):
        made = self.conv(x.transpose(1, 2))
        return self.norm(made if self.folded is None else made + self.folded).transpose(1, 2)


class Model(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.words, self.inner, self.head = nn.Embedding(IDS, WIDTH), inner, nn.Linear(WIDTH, IDS)

    def forward(self, ids):
        x = self.words(ids)
        return self.head(x + self.inner(x))


INNER = {"keys": Keys, "channels": Channels, "folded": lambda: Channels(folded=True)}


def trained(out, kind, micro, scaled=""):
    """Train two steps of the same sequences in some micro-batches; the gradient named is doubled."""
    torch.manual_seed(3)
    model = Model(INNER[kind]())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watcher = watch(model, optimizer, micro_batches=micro, out=out, level="tensors")
    for step in range(2):
        ids = torch.randint(0, IDS, (SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(step))
        for part in ids.chunk(micro):
            loss = functional.cross_entropy(model(part).flatten(0, 1), part.roll(1, 1).flatten())
            (loss / micro).backward()
        if scaled:
            model.get_parameter(scaled).grad.mul_(1.01)
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


def answered(tmp_path, kind, scaled=""):
    trained(tmp_path / "base", kind, 1)
    trained(tmp_path / "run", kind, 3, scaled)
    return compare(tmp_path / "run", tmp_path / "base")


@pytest.mark.quick(1)
@pytest.mark.parametrize("kind", ["keys", "channels"])
def test_another_order_of_cancelling_terms_is_no_bug(tmp_path, kind):
    found = answered(tmp_path, kind)
    assert found.verdict in {"rounding", "drift"}, found.reason


def test_a_faint_gradient_of_unknown_terms_is_open(tmp_path):
    found = answered(tmp_path, "folded")
    assert found.verdict == "undecided", found.reason
    assert "inner.folded.grad" in found.reason
    assert "which rounding makes only if its terms cancel" in found.reason


@pytest.mark.parametrize(
    "scaled",
    [
        "inner.value.bias",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("inner.query.bias", "head.bias")),
    ],
)
def test_a_gradient_that_does_not_cancel_is_a_bug(tmp_path, scaled):
    found = answered(tmp_path, "keys", scaled)
    assert found.verdict == "bug", found.reason
    assert scaled in found.first_divergence.tensor
