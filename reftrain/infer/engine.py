"""One rank of an engine: takes requests in turn, prefills each alone, decodes all that are under way as one batch.

A step is one forward: the prefill of a request, or one token of every request under way. Requests are dealt to
replicas (dp) one by one; the tensor ranks of a replica compute the same requests.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from reftrain.config.run import RunConfig
from reftrain.execute.sharded_stage import ShardedStage, mixed_precision
from reftrain.infer.cache import KeyValueCache
from reftrain.infer.stage import AnnotatedServing, Serving, ServingSegments
from reftrain.model.attention import choose_kernel
from reftrain.model.context import ModelContext
from reftrain.model.spmd import annotate
from reftrain.parallel.tensor import TensorParallel
from reftrain.rank.comm import Axis
from reftrain.rank.events import StepMetrics
from reftrain.rank.hooks import HookList
from reftrain.rank.mesh import Mesh
from reftrain.train.formats import POLICIES


@dataclass(frozen=True)
class Workload:
    """Requests of an engine.

    `prompt` is the longest prompt in tokens; every request ends at `prompt + generate` tokens, so that shorter prompts
    decode longer. `slots` requests are under way at once in a replica. `forced` holds the tokens of every finished
    request by number, to be taken in place of the likeliest ones. With `whole` these are one forward without a cache,
    as the trainer computes it.
    """

    requests: int = 8
    prompt: int = 16
    generate: int = 8
    slots: int = 4
    forced: tuple[tuple[int, ...], ...] = ()
    whole: bool = False
    wrong: str = ""

    @property
    def length(self) -> int:
        """Tokens of a finished request."""
        return self.prompt + self.generate

    def prompt_of(self, number: int, replicas: int, vocab_size: int, seed: int) -> torch.Tensor:
        """Return a prompt: its length and tokens follow from its number; replicas get like lengths."""
        turn = number // replicas
        generator = torch.Generator().manual_seed(seed * 1_000_003 + number)
        return torch.randint(0, vocab_size, (self.prompt_tokens(turn),), generator=generator)

    def prompt_tokens(self, turn: int) -> int:
        """Return the length of the prompt of a replica's request number `turn`."""
        return max(self.prompt - 3 * (turn % 4), 1)

    def steps(self, replicas: int) -> list[tuple[str, list[int]]]:
        """Return the steps of a replica: prefill or decode, and which of its requests take part, by turn.

        A waiting request is prefilled as soon as a slot is free; else all requests under way get a token.
        """
        waiting = list(range(-(-self.requests // replicas)))
        if self.whole:
            return [("prefill", waiting)]
        tokens = {turn: self.prompt_tokens(turn) for turn in waiting}
        under_way: list[int] = []
        steps: list[tuple[str, list[int]]] = []
        while waiting or under_way:
            if waiting and len(under_way) < self.slots:
                under_way.append(waiting.pop(0))
                steps.append(("prefill", under_way[-1:]))
            else:
                steps.append(("decode", list(under_way)))
            for turn in steps[-1][1]:
                tokens[turn] += 1
            under_way = [turn for turn in under_way if tokens[turn] < self.length]
        return steps


@dataclass
class Request:
    """A request under way: its number, slot, and tokens so far; `logits` of each position once computed."""

    number: int
    slot: int
    tokens: list[int]
    logits: list[torch.Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Done:
    """A step's figures: prefill or decode, tokens computed, seconds."""

    kind: str
    tokens: int
    seconds: float


class Engine:
    """The model of one rank, and its cache. Constructed on every rank at the same time."""

    def __init__(
        self, config: RunConfig, work: Workload, hooks: HookList, mesh: Mesh, device: torch.device
    ) -> None:
        self.config, self.work, self.hooks, self.mesh, self.device = config, work, hooks, mesh, device
        self.formats = POLICIES[config.numerics.policy]
        self.segments = ServingSegments(hooks)
        self.model = self._stage()
        policy = mixed_precision(self.formats.compute, self.formats.compute, self.formats.compute)
        self.sharded = ShardedStage(self.model, mesh.fsdp_mesh, config.mesh, policy, hooks)
        self.sharded.materialise(device, config.seed, mesh)
        if not work.whole:
            stale = work.prompt // 2 if work.wrong == "stale" else -1
            self.model.cache = KeyValueCache(work.slots, work.length, stale)
        self.model.wrong = work.wrong
        if work.wrong == "scale":
            self.model.break_scale()
        self.done: list[Done] = []

    def _stage(self) -> Serving:
        context = serving_context(self.config, self.mesh.tp, self.segments, self.device)
        layers = range(self.config.model.layers)
        made: Serving
        if self.config.mesh.annotated:
            annotated = annotate(context, self.mesh.device_mesh)
            context, made = annotated, AnnotatedServing(annotated, layers, first=True, last=True)
        else:
            made = Serving(context, layers, first=True, last=True)
        made.serve(context, self.config.model.rope_base, self.formats.wide)
        return made

    def requests(self) -> list[Request]:
        """Return the requests of this replica, in turn, without slots."""
        dp, config = self.mesh.dp, self.config
        own = range(dp.index, self.work.requests, dp.size)
        if self.work.whole:
            return [Request(n, -1, list(self.work.forced[n][:-1])) for n in own]
        vocab = config.model.vocab_size
        return [
            Request(n, -1, self.work.prompt_of(n, dp.size, vocab, config.data.seed).tolist()) for n in own
        ]

    @torch.no_grad()
    def run(self, on_step: Callable[[str, list[Request]], None] = lambda _k, _r: None) -> list[Request]:
        """Answer all requests of this replica, greedily; `on_step` hears of each step before it is computed."""
        requests = self.requests()
        free = list(range(self.work.slots))
        for number, (kind, turns) in enumerate(self.work.steps(self.mesh.dp.size)):
            taking = [requests[turn] for turn in turns]
            for request in taking:
                if request.slot < 0 and not self.work.whole:
                    request.slot = free.pop(0)
            on_step(kind, taking)
            self.hooks.step_begin(number)
            self._step(kind, taking, len(taking[0].tokens) if kind == "prefill" else 1)
            self.hooks.step_end(self._figures(number))
            free += [r.slot for r in taking if len(r.tokens) == self.work.length]
        return requests

    def _figures(self, number: int) -> StepMetrics:
        """Figures of a step as hooks take them; nothing is trained, so there is no loss."""
        last, nothing = self.done[-1], float("nan")
        return StepMetrics(number, nothing, nothing, 0.0, last.tokens, 0, last.seconds, None, 0)

    def _step(self, kind: str, requests: list[Request], new: int) -> None:
        """Compute the last `new` tokens of each request, and add the next one."""
        begin = time.perf_counter()
        tokens, positions = self._inputs(requests, new)
        if self.model.cache is not None:
            self.model.cache.begin([r.slot for r in requests], positions)
        logits = self._whole_vocabulary(self.sharded.module(tokens, positions))
        for request, own in zip(requests, logits, strict=True):
            request.logits.extend(own)
            forced = self.work.forced[request.number][len(request.tokens)] if self.work.forced else None
            request.tokens.append(int(own[-1].argmax()) if forced is None else forced)
        self.done.append(Done(kind, new * len(requests), time.perf_counter() - begin))

    def _inputs(self, requests: list[Request], new: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and positions of a forward: the last `new` tokens of each request."""
        rows = [r.tokens[-new:] for r in requests]
        starts = torch.tensor([len(r.tokens) - new for r in requests])
        positions = starts.unsqueeze(1) + torch.arange(new)
        return torch.tensor(rows).to(self.device), positions.to(self.device)

    def _whole_vocabulary(self, logits: torch.Tensor) -> torch.Tensor:
        """(B, S, V_padded/tp) to (B, S, V) on every tensor rank, without padding."""
        stacked = self.mesh.tp.all_gather(logits, "output.logits")
        return torch.cat(stacked.unbind(0), dim=-1)[..., : self.config.model.vocab_size]


def serving_context(
    config: RunConfig, tp: Axis, segments: ServingSegments, device: torch.device
) -> ModelContext:
    """Return the settings that the layers of an engine share; weights are held in the compute format."""
    numerics, model, formats = config.numerics, config.model, POLICIES[config.numerics.policy]
    kernel = choose_kernel(numerics.attention, device, document_mask=True, cp=1, head_dim=model.head_dim)
    alone = Axis("cp", 0, tp.ranks[tp.index : tp.index + 1], None, tp.hooks)
    return ModelContext(
        model=model,
        tp=TensorParallel(tp, sequence_parallel=False),
        cp=alone,
        segments=segments,
        parameter_dtype=formats.compute,
        kernel="math" if kernel == "math" else "sdpa",
        ring=False,
        recompute="none",
        label_smoothing=0.0,
        tokens=config.data.micro_batch_size * config.data.seq_len,
        ep=alone,
        sequences=config.data.batch_size,
    )


def steps_of(done: list[Done]) -> Iterator[tuple[str, int, int, float]]:
    """Yield kind, number of steps, tokens and seconds of both kinds of step."""
    for kind in ("prefill", "decode"):
        own = [d for d in done if d.kind == kind]
        yield kind, len(own), sum(d.tokens for d in own), sum(d.seconds for d in own)
