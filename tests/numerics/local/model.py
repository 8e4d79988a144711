"""A small decoder as a user writes it, whole on one process; `build` is what `--model` names."""

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, WORDS, LAYERS = 32, 4, 64, 2


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))

    def forward(self, x):
        batch, length, _ = x.shape
        q, k, v = (
            w(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.wo(mixed.transpose(1, 2).reshape(batch, length, -1))


class FeedForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1, self.w3 = (nn.Linear(WIDTH, 2 * WIDTH, bias=False) for _ in range(2))
        self.w2 = nn.Linear(2 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        return self.w2(functional.silu(self.w1(x)) * self.w3(x))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm, self.ffn_norm = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.ffn = Attention(), FeedForward()

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.ffn(self.ffn_norm(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def build(dtype=torch.float32):
    """The whole model and its optimiser."""
    torch.manual_seed(0)
    model = Decoder().to(dtype)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def loss_of(logits, words, **more):
    """The loss of half a step, as the trainers divide it."""
    return functional.cross_entropy(logits.flatten(0, 1), words.flatten(), **more) / 2


def build_with_loss():
    return *build(), loss_of


def build_with_half_the_loss():
    return *build(), lambda logits, words: loss_of(logits, words) / 2


def build_with_another_loss():
    return *build(), lambda logits, words: loss_of(logits, words, label_smoothing=0.01)


def build_narrow():
    return build(torch.bfloat16)
