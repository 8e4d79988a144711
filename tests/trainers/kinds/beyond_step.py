"""Trainers that do more than forward, backward and step: two outputs, weighted classes, weights changed by hand."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from numerics import watch
from tests.trainers.case import THREE, Case, run
from tests.trainers.parts import WIDTH, WORDS, backward, sequences

STEPS, PAIRS, SEEN, READ = 2, 12, 10, 7


class Towers(nn.Module):
    """Two towers, and the temperature of the loss that compares them."""

    def __init__(self) -> None:
        super().__init__()
        self.sight, self.text = nn.Linear(SEEN, WIDTH), nn.Linear(READ, WIDTH)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, seen: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
        """(B, 10) and (B, 7) to two sets of features (B, D)."""
        return functional.normalize(self.sight(seen), dim=-1), functional.normalize(self.text(read), dim=-1)


class Words(nn.Module):
    """Words, a layer, a head; the gradient of the words names the rows that were read."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        """Words (B, S) to logits (B, S, V)."""
        logits: Tensor = self.head(torch.tanh(self.layer(self.words(words))))
        return logits


class Gathered(torch.autograd.Function):
    """All ranks' rows; each rank's gradient is the sum of what all ranks send back."""

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        """(B, D) to (ranks times B, D)."""
        parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        """The own rows of the summed gradient."""
        grad = grad.contiguous().clone()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


def build_towers() -> tuple[Towers, torch.optim.Optimizer]:
    """The towers and their optimiser."""
    torch.manual_seed(0)
    model = Towers()
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def build() -> tuple[Words, torch.optim.Optimizer]:
    """The language model and its optimiser."""
    torch.manual_seed(0)
    model = Words()
    return model, torch.optim.SGD(model.parameters(), lr=0.2)


def compare_towers(rank: int, world: int, bug: str = "") -> None:
    """DDP; each rank compares its own pairs with those of all ranks."""
    model, optimizer = build_towers()
    wrapped = DistributedDataParallel(model)
    watcher = watch(wrapped, optimizer)
    for step in range(STEPS):
        drawn = torch.randn(PAIRS, SEEN + READ, generator=torch.Generator().manual_seed(step))
        seen, read = torch.split(drawn.chunk(world)[rank], [SEEN, READ], -1)
        one, other = wrapped(seen, read)
        ones, others = Gathered.apply(one), Gathered.apply(other)  # type: ignore[no-untyped-call] # torch's
        mine = torch.arange(len(seen)) + (0 if bug == "labels" else rank * len(seen))
        scale = model.scale.exp()
        loss = functional.cross_entropy(scale * one @ others.T, mine)
        backward((loss + functional.cross_entropy(scale * other @ ones.T, mine)) / 2)
        optimizer.step()
        optimizer.zero_grad()
    watcher.close()


def train(rank: int, world: int, weights: str = "", beside: str = "") -> None:
    """DDP; `weights` weighs classes by all ranks' or each rank's sum, `beside` changes weights around the step."""
    model, optimizer = build()
    wrapped = DistributedDataParallel(model)
    watcher = watch(wrapped, optimizer)
    classes = torch.linspace(0.25, 1.75, WORDS)
    for step in range(STEPS):
        words = sequences(step, rank, world)
        labels = words[:, 1:].flatten()

        def loss_of(words: Tensor = words, labels: Tensor = labels) -> Tensor:
            logits = wrapped(words[:, :-1]).flatten(0, 1)
            if not weights:
                return functional.cross_entropy(logits, labels)
            total = classes[labels].sum()
            if weights == "all":
                dist.all_reduce(total)
                total /= world
            return functional.cross_entropy(logits, labels, weight=classes, reduction="sum") / total

        backward(loss_of())
        if beside == "sharpness":
            moves = [
                0.05 * p.grad.coalesce().to_dense() if p.grad.is_sparse else 0.05 * p.grad
                for p in model.parameters()
                if p.grad is not None
            ]
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves, strict=True):
                    p.add_(move)
            optimizer.zero_grad()
            backward(loss_of())
            with torch.no_grad():
                for p, move in zip(model.parameters(), moves, strict=True):
                    p.sub_(move)
        optimizer.step()
        optimizer.zero_grad()
        if beside == "projection" or (beside == "projection on rank 1" and rank == 1):
            with torch.no_grad():
                model.layer.weight.div_(model.layer.weight.norm(dim=-1, keepdim=True))
    watcher.close()


HEALTHY = (
    Case("two_towers", run(compare_towers, 3), build_towers, run(compare_towers, 1)),
    Case("sparse_words", run(train, 3), build, run(train, 1), questions=THREE),
    Case("class_weights", run(train, 3, weights="all"), build, run(train, 1, weights="all"), questions=THREE),
    Case("sharpness_aware", run(train, 3, beside="sharpness"), build, run(train, 1, beside="sharpness")),
    Case(
        "projected_weights",
        run(train, 3, beside="projection"),
        build,
        run(train, 1, beside="projection"),
        questions=THREE,
    ),
)
BROKEN = (
    Case(
        "two_towers_wrong_labels",
        run(compare_towers, 3, bug="labels"),
        build_towers,
        run(compare_towers, 3),
        planted="each rank takes the first rank's pairs for its own",
        where=r"loss|sight|text|scale",
        reason=r"loss",
        word=r"the loss",
    ),
    Case(
        "class_weights_by_rank",
        run(train, 3, weights="each"),
        build,
        run(train, 1, weights="each"),
        planted="each rank divides by the sum of its own classes' weights",
        where=r"loss|words|head|layer",
        reason=r"counts .* times as much|loss",
        word=r"not checked: the loss|but for the loss|, the loss",
        questions=THREE,
    ),
    Case(
        "projected_on_one_rank",
        run(train, 3, beside="projection on rank 1"),
        build,
        run(train, 3, beside="projection"),
        planted="one rank alone projects its weights",
        where=r"layer\.weight",
        questions=THREE,
    ),
)
CASES = (*HEALTHY, *BROKEN)
