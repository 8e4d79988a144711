"""Runs under tensor and sequence parallelism by hand: norms, biases, adapters, dropout and clipping over ranks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from numerics import Placed, watch
from numerics.record.placement import boxes_of
from tests.reports.report import OPEN, RIGHT, WRONG, Answer, Report
from tests.reports.tensor_layers import (
    TP,
    Adapted,
    Column,
    Cut,
    Decoder,
    Join,
    Row,
    SumCut,
    build,
    build_adapted,
)
from tests.reports.trained import STEPS, WORDS, Trainer
from tests.reports.vocabulary import OVER, CopyIn, SumOut
from tests.reports.wrong import HEALTHY, seen, verdict

LENGTH, SEQUENCES = 9, 12
MODEL = Path(__file__).parent / "tensor_layers.py"


@dataclass(frozen=True)
class InTensor(Trainer):
    """Tensor parallelism of all layers over three ranks, with sequence parallelism between them where `pieces`.

    Gradients of what all ranks hold are summed where each rank saw its own positions, but for the names in `forgets`.
    `clips` is a limit of the norm of all gradients, which is taken as `counts` says. `replicas` of the three ranks
    share the batch. `seeds` says which ranks draw alike, `inner` what is dropped of the parts within the MLP, and
    `tracked` that each rank draws that from a state of its own.
    """

    pieces: bool = True
    adapted: bool = False
    drop: float = 0.0
    forgets: tuple[str, ...] = ()
    shares: bool = False
    clips: float = 0.0
    counts: str = ""
    seeds: str = "alike"
    replicas: int = 1
    inner: float = 0.0
    tracked: bool = False

    def model(self) -> tuple[Decoder, torch.optim.Optimizer]:
        return build_adapted() if self.adapted else build(drop=self.drop, inner=self.inner)

    def parted(self, model: Decoder) -> set[str]:
        """Part the layers over ranks; the names of parameters that are parted."""
        gather = (lambda x: Join.apply(x, True)) if self.pieces else CopyIn.apply
        scatter = SumCut.apply if self.pieces else SumOut.apply
        for layer in model.layers:
            for name in ("q", "k", "v", "up"):
                whole = getattr(layer, name)
                if isinstance(whole, Adapted):
                    whole.base, whole.b = Column(whole.base, gather), Column(whole.b, gather)
                else:
                    setattr(layer, name, Column(whole, gather))
            for name in ("out", "down"):
                whole = getattr(layer, name)
                if isinstance(whole, Adapted):
                    whole.base = Row(whole.base, scatter, self.shares)
                    whole.a = Row(whole.a, scatter, self.shares)
                else:
                    setattr(layer, name, Row(whole, scatter, self.shares))
        if self.pieces:
            model.cut, model.joined = Cut.apply, lambda x: Join.apply(x, False)
        columns = {n: m for n, m in model.named_modules() if isinstance(m, Column | Row)}
        return {
            f"{name}.{part}"
            for name, module in columns.items()
            for part, _ in module.named_parameters()
            if part == "weight" or isinstance(module, Column)
        }

    def train(self, rank: int, world: int, out: Path) -> None:
        replica, among = self.grouped(rank) if world > 1 else (0, None)
        replicas, rank = max(world // TP, 1), rank % TP
        model, optimizer = self.model()
        parted = self.parted(model) if world > 1 else set()
        trained = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(trained, lr=0.5, momentum=0.9)
        torch.manual_seed(20 + {"apart": rank, "by replica": 40 * replica}.get(self.seeds, 0))
        if self.tracked and world > 1:
            tracker = Tracker(60 + TP * replica + rank)
            for layer in model.layers:
                layer.drawing = tracker.fork
        watcher = watch(
            model,
            optimizer,
            micro_batches=self.micro,
            dp=(replica, replicas),
            coords={"dp": replica, "tp": rank},
            place=placing(rank, self.micro * replicas) if world > 1 and self.pieces else None,
            out=out,
            level="tensors",
        )
        for step in range(STEPS):
            for ids, labels in self.batches(step, replica, replicas):
                logits = model(ids)
                watcher.targets(labels)
                self.loss(logits, labels, step).backward()
            if world > 1 and self.pieces:
                self.sum_pieces(model, parted)
            for weight in trained if replicas > 1 else ():
                dist.all_reduce(weight.grad, group=among)
                weight.grad = None if weight.grad is None else weight.grad / replicas
            self.clip(model, parted)
            optimizer.step()
            optimizer.zero_grad()
        watcher.close()

    def grouped(self, rank: int) -> tuple[int, dist.ProcessGroup | None]:
        """Make the groups of three ranks; the number of this rank's, and the group of its peers in the others."""
        if self.replicas == 1:
            return 0, None
        ranks = torch.arange(TP * self.replicas).view(self.replicas, TP)
        inner = [dist.new_group(row) for row in ranks.tolist()]
        outer = [dist.new_group(column) for column in ranks.T.tolist()]
        OVER[0] = inner[rank // TP]
        return rank // TP, outer[rank % TP]

    def batches(self, step: int, rank: int, world: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        drawn = torch.randint(
            1, WORDS, (SEQUENCES, LENGTH + 1), generator=torch.Generator().manual_seed(90 + step)
        )
        return [(part[:, :-1], part[:, 1:]) for part in drawn.chunk(world)[rank].chunk(self.micro)]

    def sum_pieces(self, model: nn.Module, parted: set[str]) -> None:
        """Sum over ranks the gradients of what each rank applied to its own positions."""
        for name, weight in model.named_parameters():
            outside = name.startswith(("words", "head"))
            if weight.grad is None or name in parted or outside or name.endswith(self.forgets or ("?",)):
                continue
            dist.all_reduce(weight.grad, group=OVER[0])

    def clip(self, model: nn.Module, parted: set[str]) -> None:
        """Clip all gradients by their norm."""
        if not self.clips:
            return
        squares = torch.zeros(2)
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                squares[int(name in parted)] += weight.grad.square().sum()
        if dist.is_initialized() and self.counts == "all":
            dist.all_reduce(squares, group=OVER[0])
        elif dist.is_initialized() and self.counts != "own":
            dist.all_reduce(squares[1:], group=None if self.counts == "replicas" else OVER[0])
        factor = (self.clips / squares.sum().sqrt()).clamp(max=1.0)
        for weight in model.parameters():
            if weight.grad is not None:
                weight.grad *= factor


class Tracker:
    """A state of the generator beside the usual one."""

    def __init__(self, seed: int) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.state = torch.get_rng_state()

    @contextmanager
    def fork(self) -> Iterator[None]:
        """Draw from this state for a while, and keep where it ends."""
        with torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self.state)
            yield
            self.state = torch.get_rng_state()


def placing(rank: int, micro: int) -> Callable[[str, torch.Tensor], Placed | None]:
    """What `watch(place=...)` gets from a rank that holds a third of the positions between parted layers."""
    held = torch.arange(LENGTH).chunk(TP)[rank]

    def place(_name: str, value: torch.Tensor) -> Placed | None:
        if value.dim() < 2 or value.shape[:2] != (SEQUENCES // micro, len(held)):
            return None
        shape = (len(value), LENGTH, *value.shape[2:])
        kept = [torch.arange(size) for size in shape]
        return Placed(value, shape, boxes_of([kept[0], held, *kept[2:]]))

    return place


def beside(
    source: str,
    input_: str,
    expected: str,
    trainer: Trainer,
    sound: Trainer,
    judge: Callable[[Answer], str],
    *,
    model: str = "build",
    ranks: int = 3,
    sound_ranks: int = 1,
    quick: bool = False,
) -> Report:
    """A report on a pair of runs of this model."""
    more = {"ranks": ranks, "sound_ranks": sound_ranks}
    return seen(source, input_, expected, trainer, sound, judge, model=model, file=MODEL, quick=quick, **more)


def drawn_alike(answer: Answer) -> str:
    """Right where ranks that draw alike are named, in whatever verdict; wrong where they are passed over."""
    if answer.says("draw alike", "drop alike", "the same elements"):
        return RIGHT
    return OPEN if answer.verdict == "undecided" else WRONG


WHOLE = InTensor()
CLIPPED = InTensor(clips=0.3)
ADAPTED = InTensor(adapted=True)
DROPPING = InTensor(drop=0.2)
REPORTS: list[Report] = [
    beside(
        "NVIDIA/Megatron-LM#1736",
        "tensor parallelism over 3 ranks beside one process",
        "no bug",
        InTensor(pieces=False),
        WHOLE,
        HEALTHY,
    ),
    beside(
        "EleutherAI/gpt-neox#1257",
        "sequence parallelism as well: each rank applies norms to its positions, and their gradients are summed",
        "no bug",
        WHOLE,
        WHOLE,
        HEALTHY,
    ),
    beside(
        "NVIDIA-NeMo/Megatron-Bridge#5411",
        "sequence parallelism beside tensor parallelism without it, 3 ranks each",
        "no bug",
        WHOLE,
        InTensor(pieces=False),
        HEALTHY,
        sound_ranks=3,
    ),
    beside(
        "NVIDIA-NeMo/Speech#7184",
        "the same without the sum of the norms' gradients",
        "bug: a norm's gradient, tp",
        InTensor(forgets=("norm.weight", "norm.bias")),
        WHOLE,
        verdict("bug", words=("norm.weight.grad",)),
    ),
    beside(
        "NVIDIA/Megatron-LM#236",
        "the same without the sum of the gradients of biases behind the sum over ranks",
        "bug: a bias's gradient, tp",
        InTensor(forgets=("out.bias", "down.bias")),
        WHOLE,
        verdict("bug", words=("out.bias.grad",)),
    ),
    beside(
        "pytorch/torchtitan#4332",
        "each rank adds a third of the bias before the sum, so that its gradient is a third",
        "bug: a bias's gradient, 1/tp of the right one",
        InTensor(pieces=False, shares=True),
        WHOLE,
        verdict("bug", words=("1/tp",)),
    ),
    beside(
        "hpcaitech/ColossalAI#4837",
        "gradients are clipped by a norm that counts parted weights on all ranks and copies once",
        "no bug",
        InTensor(pieces=False, clips=0.3),
        CLIPPED,
        HEALTHY,
    ),
    beside(
        "NVIDIA-NeMo/RL#3788",
        "the norm counts the copies once a rank",
        "bug: gradients are too small, by the clip",
        InTensor(pieces=False, clips=0.3, counts="all"),
        CLIPPED,
        verdict("bug", words=("norm by which they are clipped",)),
    ),
    beside(
        "NVIDIA/Megatron-LM#6489",
        "two replicas of the three ranks, and the norm adds up the parts of all six",
        "bug: gradients are too small, by the clip",
        InTensor(pieces=False, clips=0.3, counts="replicas", replicas=2),
        CLIPPED,
        verdict("bug", words=("norm by which they are clipped",)),
        ranks=6,
        quick=True,
    ),
    beside(
        "huggingface/transformers#36132",
        "each rank clips by the norm of what it holds",
        "bug: a factor of each rank's own, tp",
        InTensor(pieces=False, clips=0.3, counts="own"),
        CLIPPED,
        verdict("bug", words=("factor of its own",)),
    ),
    beside(
        "NVIDIA-NeMo/Speech#8369",
        "adapters of low rank under sequence parallelism, beside one process",
        "no bug",
        ADAPTED,
        ADAPTED,
        HEALTHY,
        model="build_adapted",
    ),
    beside(
        "modelscope/mcore-bridge#173",
        "the same, and gradients of the adapters' halves that all ranks hold are not summed",
        "bug: the gradient of such a half, tp",
        InTensor(adapted=True, forgets=("out.b.weight", "q.a.weight")),
        ADAPTED,
        verdict("bug", words=("q.a.weight.grad",)),
        model="build_adapted",
    ),
    beside(
        "PaddlePaddle/Paddle#36228",
        "dropout that all ranks of tensor parallelism draw alike, beside one process with other random numbers",
        "no bug",
        InTensor(pieces=False, drop=0.2),
        DROPPING,
        HEALTHY,
        model="build_dropping",
    ),
    beside(
        "awslabs/slapo#21",
        "the same, and each rank draws for itself",
        "bug: dropout that differs between copies, tp",
        InTensor(pieces=False, drop=0.2, seeds="apart"),
        DROPPING,
        verdict("bug", words=("draw random numbers apart",)),
        model="build_dropping",
    ),
    beside(
        "PaddlePaddle/PaddleFleetX#1005",
        "under sequence parallelism each rank drops the same elements of its own positions",
        "ranks that draw alike for positions of their own",
        DROPPING,
        DROPPING,
        drawn_alike,
        model="build_dropping",
    ),
    beside(
        "ecmwf/anemoi-core#595",
        "the same, and each rank draws for itself",
        "no bug",
        InTensor(drop=0.2, seeds="apart"),
        DROPPING,
        HEALTHY,
        model="build_dropping",
    ),
]
