"""The model, the data and the loss that most trainers of the benchmark share: a decoder small enough for seconds."""

import torch
from torch import Tensor, nn
from torch.nn import functional

WORDS, WIDTH, HEADS, LENGTH, BATCH, PAD, IGNORED = 48, 24, 3, 8, 12, 0, -100


def backward(loss: Tensor) -> None:
    """`loss.backward()`, which torch leaves untyped."""
    loss.backward()  # type: ignore[no-untyped-call]


class Attention(nn.Module):
    """Causal attention; a mask (B, 1, S, S) of truths replaces the causal one."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Attention and MLP behind norms, with dropout where asked."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm1, self.attention = nn.RMSNorm(WIDTH), Attention()
        self.norm2, self.up = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH, bias=False)
        self.down, self.drop = nn.Linear(2 * WIDTH, WIDTH, bias=False), nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, S, D) to (B, S, D)."""
        x = x + self.attention(self.norm1(x), mask)
        out: Tensor = x + self.drop(self.down(functional.silu(self.up(self.norm2(x)))))
        return out


class Model(nn.Module):
    """Word and position embeddings, blocks, a norm and a head."""

    def __init__(self, layers: int = 1, dropout: float = 0.0, tied: bool = False) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(4 * LENGTH, WIDTH)
        self.layers = nn.ModuleList([Block(dropout) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.words.weight

    def forward(self, words: Tensor, positions: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Words (B, S) to logits (B, S, V)."""
        places = torch.arange(words.shape[1]) if positions is None else positions
        x = self.words(words) + self.places(places)
        for layer in self.layers:
            x = layer(x, mask)
        logits: Tensor = self.head(self.norm(x))
        return logits


def new_model(layers: int = 1, dropout: float = 0.0, tied: bool = False) -> Model:
    """A model with the weights that every rank begins with."""
    torch.manual_seed(0)
    return Model(layers, dropout, tied)


def sequences(step: int, rank: int, world: int, batch: int = BATCH, seed: int = 0) -> Tensor:
    """The share of one rank in a step's sequences, (B / world, S + 1)."""
    generator = torch.Generator().manual_seed(1000 * seed + step)
    return torch.randint(1, WORDS, (batch, LENGTH + 1), generator=generator).chunk(world)[rank]


def ragged(step: int, rank: int, world: int) -> tuple[Tensor, Tensor]:
    """Words and labels of padded sequences: PAD at the end of words, IGNORED at the end of labels."""
    generator = torch.Generator().manual_seed(step)
    drawn = torch.randint(1, WORDS, (BATCH, LENGTH + 1), generator=generator)
    lengths = torch.randint(2, LENGTH + 1, (BATCH, 1), generator=generator)
    inside = torch.arange(LENGTH) < lengths
    words = drawn[:, :-1].masked_fill(~inside, PAD)
    labels = drawn[:, 1:].masked_fill(~inside, IGNORED)
    return words.chunk(world)[rank], labels.chunk(world)[rank]


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over the labels that count."""
    return functional.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED)


def sum_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """The sum over the labels that count."""
    return functional.cross_entropy(
        logits.flatten(0, -2), labels.flatten(), ignore_index=IGNORED, reduction="sum"
    )
