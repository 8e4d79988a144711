"""A trainer whose ranks read their sequences in several ways, and one whose loss has a part beside the output."""

import torch
from torch import nn
from torch.nn import functional

from numerics import watch
from tests.numerics.local.outsiders import ended, started

WORDS, WIDTH, LENGTH, SHARE = 40, 8, 6, 4


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, ids):
        return self.head(self.words(ids))


class Balanced(Tagger):
    """Keeps a loss of its own beside its output, as routers of experts do."""

    def __init__(self):
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)

    def forward(self, ids):
        x = self.words(ids)
        chances = self.router(x).softmax(-1)
        return self.head(x * chances.amax(-1, keepdim=True)), chances.mean((0, 1)).square().sum()


def model_of(kind=Tagger):
    torch.manual_seed(3)
    model = kind()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def balanced():
    return model_of(Balanced)


def sequences(step, reader, seed):
    drawn = torch.Generator().manual_seed(1000 * seed + 10 * step + reader)
    return torch.randint(1, WORDS, (SHARE, LENGTH + 1), generator=drawn)


def reading(rank, world, store, out, readers=(0, 1, 2), seed=0, steps=(0, 1)):
    """DDP: each rank reads what the reader at its place does, in each of the steps of the data."""
    started(rank, world, store)
    model, optimizer = model_of()
    wrapped = nn.parallel.DistributedDataParallel(model)
    watcher = watch(wrapped, optimizer, out=out, level="tensors")
    for step in steps:
        words = sequences(step, readers[rank], seed)
        functional.cross_entropy(wrapped(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    ended(watcher)


def balancing(out, share=0.1, detached=False):
    """One process; the loss beside the output counts by `share`, and may be cut off from the gradients."""
    model, optimizer = balanced()
    watcher = watch(model, optimizer, dp=(0, 1), out=out, level="tensors")
    words = sequences(0, 0, 0)
    logits, balance = model(words[:, :-1])
    loss = functional.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
    (loss + share * (balance.detach() if detached else balance)).backward()
    optimizer.step()
    watcher.close()


def forwards(out, given):
    """Forwards without gradients, with an optimizer `given` to the watcher or without."""
    model, optimizer = model_of()
    watcher = watch(model, optimizer if given else None, dp=(0, 1), out=out, level="tensors")
    with torch.no_grad():
        model(sequences(0, 0, 0)[:, :-1])
    watcher.close()
