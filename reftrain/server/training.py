"""Trains with a parameter server: rank 0 holds the weights, the others compute gradients, all over Gloo.

A worker asks for weights, computes, and sends its gradient. The server answers as `clocks` allows and notes the version
that it hands out, so that `replayed` repeats the whole job in one process, in the same bits.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist

from reftrain.config.fault_spec import FaultSpec
from reftrain.config.run import RunConfig
from reftrain.rank.processes import Ranks
from reftrain.rank.world import World
from reftrain.server.clocks import Clocks
from reftrain.server.model import Replica, Shares, initial_vector
from tracekit.locked_folders import temporary

_PULL, _PUSH = 0.0, 1.0
_HEADER, _GRADIENT, _WEIGHTS = 1, 2, 3
"""Tags of messages."""


@dataclass(frozen=True)
class Trained:
    """A trained job: losses by step in nats a token, versions[step][worker], seconds each worker waited for weights."""

    losses: list[float]
    versions: list[list[int]]
    waited_s: list[float]
    weights: torch.Tensor


def train(config: RunConfig, staleness: int, faults: Sequence[FaultSpec] = ()) -> Trained:
    """Train `config.steps` steps with `mesh.dp` workers and a server, each a forked process of this machine.

    Raises `RankDiedError` when one of them ended early.
    """
    with temporary("reftrain-server-") as folder:
        ranks, size = Ranks(), config.mesh.dp + 1
        try:
            for rank in range(size):
                world = World(rank, rank, size, f"file://{folder}/store")
                ranks.fork(partial(_run_rank, config, staleness, list(faults), world, Path(folder)))
            ranks.wait()
        finally:
            ranks.end()
        content = json.loads((Path(folder) / "trained.json").read_text(encoding="utf-8"))
        weights = torch.load(Path(folder) / "weights.pt", weights_only=True)
        return Trained(content["losses"], content["versions"], content["waited_s"], weights)


def _run_rank(
    config: RunConfig, staleness: int, faults: Sequence[FaultSpec], world: World, folder: Path
) -> None:
    """Run one process of the job: the server on rank 0."""
    torch.set_num_threads(config.threads)
    dist.init_process_group("gloo", init_method=world.meeting, rank=world.rank, world_size=world.size)
    try:
        if world.rank:
            mine = [f for f in faults if f.rank == world.rank]
            work(config, world.rank, mine)
            return
        found = serve(config, staleness)
        torch.save(found.weights, folder / "weights.pt")
        content = {name: value for name, value in asdict(found).items() if name != "weights"}
        (folder / "trained.json").write_text(json.dumps(content), encoding="utf-8")
    finally:
        dist.destroy_process_group()


def work(config: RunConfig, rank: int, faults: Sequence[FaultSpec]) -> None:
    """Compute the gradients of worker `rank` - 1; a planted `slow_compute` makes each of its steps longer."""
    replica, shares = Replica(config), Shares(config)
    weights = replica.weights()
    for clock in range(config.steps):
        dist.send(torch.tensor([_PULL, clock, 0.0], dtype=torch.float64), 0, tag=_HEADER)
        dist.recv(weights, 0, tag=_WEIGHTS)
        begun = time.perf_counter()
        replica.set_weights(weights)
        gradient, loss = replica.gradient(*shares.of(clock, rank - 1))
        for fault in (f for f in faults if f.active(clock)):
            time.sleep((fault.values["factor"] - 1) * (time.perf_counter() - begun))
        dist.send(torch.tensor([_PUSH, clock, loss], dtype=torch.float64), 0, tag=_HEADER)
        dist.send(gradient, 0, tag=_GRADIENT)


class Server:
    """The weights, the gradients of clocks that are not complete, and the workers that wait."""

    def __init__(self, config: RunConfig, staleness: int) -> None:
        self.config, workers = config, config.mesh.dp
        self.clocks = Clocks(workers, staleness)
        self.weights = initial_vector(config)
        self.gradients: dict[int, dict[int, torch.Tensor]] = {}
        self.losses: dict[int, dict[int, float]] = {}
        self.waiting: dict[int, tuple[int, float]] = {}  # worker: its clock, and since when
        self.versions = [[0] * workers for _ in range(config.steps)]
        self.waited = [0.0] * workers

    def answer(self) -> None:
        """Send the weights to all workers that may begin."""
        for worker, (clock, since) in sorted(self.waiting.items()):
            if self.clocks.may_begin(clock):
                del self.waiting[worker]
                self.waited[worker] += time.perf_counter() - since
                self.versions[clock][worker] = self.clocks.version
                dist.send(self.weights, worker + 1, tag=_WEIGHTS)

    def take(self, worker: int, clock: int, loss: float, gradient: torch.Tensor) -> None:
        """Keep a gradient; step when all of its clock are there, added in the order of the workers."""
        self.gradients.setdefault(clock, {})[worker] = gradient
        self.losses.setdefault(clock, {})[worker] = loss
        if self.clocks.arrive(clock, worker):
            of_clock = self.gradients.pop(clock)
            descend(self.config, self.weights, [of_clock[w] for w in sorted(of_clock)])


def descend(config: RunConfig, weights: torch.Tensor, gradients: Sequence[torch.Tensor]) -> None:
    """Make a step of plain SGD in place: gradients added in their order, a constant learning rate."""
    total = gradients[0].clone()
    for gradient in gradients[1:]:
        total += gradient
    weights -= config.optimizer.learning_rate * total


def serve(config: RunConfig, staleness: int) -> Trained:
    """Run the server until every worker has sent every gradient."""
    server, header = Server(config, staleness), torch.zeros(3, dtype=torch.float64)
    left = config.steps * config.mesh.dp
    while left:
        source = dist.recv(header, tag=_HEADER)
        kind, clock, loss = header.tolist()
        if kind == _PULL:
            server.waiting[source - 1] = int(clock), time.perf_counter()
        else:
            gradient = torch.empty_like(server.weights)
            dist.recv(gradient, source, tag=_GRADIENT)
            server.take(source - 1, int(clock), loss, gradient)
            left -= 1
        server.answer()
    losses = [sum(of_step[w] for w in sorted(of_step)) for _, of_step in sorted(server.losses.items())]
    return Trained(losses, server.versions, server.waited, server.weights)


def replayed(config: RunConfig, versions: Sequence[Sequence[int]]) -> Trained:
    """Return the same job computed by one process, each gradient on the version of the weights that `versions` says.

    With versions[step] = step everywhere that is synchronous SGD.
    """
    replica, shares = Replica(config), Shares(config)
    held, losses = {0: replica.weights()}, []
    for step, of_step in enumerate(versions):
        gradients, total = [], 0.0
        for worker, version in enumerate(of_step):
            replica.set_weights(held[version])
            gradient, loss = replica.gradient(*shares.of(step, worker))
            gradients.append(gradient)
            total += loss
        losses.append(total)
        held[step + 1] = held[step].clone()
        descend(config, held[step + 1], gradients)
        needed = min((min(later) for later in versions[step + 1 :]), default=step + 1)
        for version in [v for v in held if v < needed and v <= step]:
            del held[version]
    return Trained(losses, [list(v) for v in versions], [0.0] * config.mesh.dp, held[len(versions)])
