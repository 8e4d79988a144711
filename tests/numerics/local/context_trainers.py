"""A trainer with context parallelism by hand: sequences cut over ranks, keys and values gathered."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional

from numerics import Box, Placed, watch

WORDS, WIDE, LENGTH, SEQUENCES = 32, 16, 12, 4
CUTS = {
    "even": [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]],
    "uneven": [[0, 1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11]],
    "zigzag": [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]],
}


class Gathered(torch.autograd.Function):
    """The whole of which each rank holds a piece along dimension 1; gradients are added and cut again."""

    @staticmethod
    def forward(ctx, x, cut):
        ctx.cut = cut
        pieces = [torch.zeros(len(x), max(map(len, cut)), x.shape[2]) for _ in cut]
        mine = functional.pad(x, (0, 0, 0, pieces[0].shape[1] - x.shape[1])).contiguous()
        dist.all_gather(pieces, mine)
        return torch.cat([piece[:, : len(held)] for piece, held in zip(pieces, cut, strict=True)], 1)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.split([len(held) for held in ctx.cut], 1)[dist.get_rank()], None


class Decoder(nn.Module):
    """One layer of attention over embeddings of words and positions; `cut` and `local` are those of a rank."""

    def __init__(self, positions):
        super().__init__()
        self.cut, self.local, self.positions = None, False, positions
        self.words, self.places = nn.Embedding(WORDS, WIDE), nn.Embedding(LENGTH, WIDE)
        self.norm, self.qkv = nn.RMSNorm(WIDE), nn.Linear(WIDE, 3 * WIDE, bias=False)
        self.out, self.head = nn.Linear(WIDE, WIDE, bias=False), nn.Linear(WIDE, WORDS)

    def forward(self, words, position_ids=None):
        mine = torch.arange(words.shape[1])
        own = mine if self.cut is None or self.local else torch.tensor(self.cut[dist.get_rank()])
        x = self.words(words)
        if self.positions != "rotary":
            x = x + self.places(own if position_ids is None else position_ids)
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        if self.positions == "rotary":
            q, k = turned(q, own), turned(k, own)
        if self.cut is None:
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            true, every = (
                torch.tensor(self.cut[dist.get_rank()]),
                torch.tensor([at for held in self.cut for at in held]),
            )
            k, v = Gathered.apply(k, self.cut), Gathered.apply(v, self.cut)
            mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=true[:, None] >= every)
        return self.head(x + self.out(mixed))


def turned(x, positions):
    angle = positions[:, None] / 10.0 ** torch.arange(WIDE // 2)
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)


def build(positions="learned"):
    torch.manual_seed(0)
    model = Decoder(positions)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def trained(
    rank, world, store, out, cut="even", *, positions="learned", local=False, placed=True, means=False
):
    """Train one step of two micro-batches; capture values into `out`."""
    torch.set_num_threads(1)
    model, optimizer = build(positions)
    held = list(range(LENGTH))
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
        model.cut, model.local = CUTS[cut], local
        held = model.cut[rank]

    def place(_name, value):
        if world == 1 or value.dim() < 2 or value.shape[:2] != (SEQUENCES // 2, len(held)):
            return None
        boxes = []
        for at in held:
            if boxes and boxes[-1][0] + boxes[-1][1] == at:
                boxes[-1][1] += 1
            else:
                boxes.append([at, 1])
        rows, others = len(value), value.shape[2:]
        made = [Box((0, at, *[0] * len(others)), (rows, size, *others)) for at, size in boxes]
        return Placed(value, (rows, LENGTH, *others), tuple(made))

    watcher = watch(
        model,
        optimizer,
        micro_batches=2,
        out=out,
        level="tensors",
        dp=(0, 1),
        coords={"cp": rank},
        place=place if placed else None,
    )
    drawn = torch.randint(0, WORDS, (2, SEQUENCES, LENGTH), generator=torch.Generator().manual_seed(1))
    for words, labels in zip(drawn[0].chunk(2), drawn[1].chunk(2), strict=True):
        ids = torch.arange(len(held)) if local else torch.tensor(held)
        more = (ids.expand(len(words), -1).contiguous(),) if positions == "given" else ()
        logits = model(words[:, held], *more)
        own = functional.cross_entropy(logits.flatten(0, 1), labels[:, held].flatten(), reduction="sum")
        ranks = 1 if means == "averaged" else world
        (own / 2 / (ranks * len(words) * len(held) if means else labels.numel())).backward()
    for parameter in model.parameters() if world > 1 else ():
        if parameter.grad is not None:
            dist.all_reduce(parameter.grad)
            parameter.grad /= world if means == "averaged" else 1
    optimizer.step()
    watcher.close()
    if world > 1:
        dist.destroy_process_group()
