"""Forwards of an engine as a capture for `numerics compare`, each token at its place in its sequence.

All forwards are one of the whole model then, whatever the engine computes at once: a prompt, one token of each request,
or whole sequences. `plain_model` is the model that a proof runs.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch

from numerics import Box, Placed, watch
from numerics.schema import Level
from reftrain.config.run import MeshConfig, RunConfig
from reftrain.infer.engine import Engine, Request, Workload, serving_context
from reftrain.infer.stage import Serving, ServingSegments
from reftrain.layout.placement import HEADS
from reftrain.model.parameters import initial_values, shard_part, specs_of
from reftrain.rank.comm import Axis
from reftrain.rank.hooks import HookList
from reftrain.train.formats import POLICIES
from tracekit.own_files import of_a_run, remove_own

FORWARDS = "forwards"
"""Folder of the capture within the run: no training run, so run.json does not describe it."""
OnStep = Callable[[str, list[Request]], None]


@contextlib.contextmanager
def watched(engine: Engine, level: str) -> Iterator[OnStep]:
    """Record the engine's forwards into its run's folder while the block runs; yield what hears of its steps."""
    if not level:
        yield lambda _kind, _requests: None
        return
    places = _Places(engine.work)
    remove_own(Path(engine.config.out) / FORWARDS, of_a_run)
    watcher = watch(
        engine.model,
        None,
        micro_batches=len(engine.work.steps(1)),
        out=Path(engine.config.out) / FORWARDS,
        level=cast("Level", level),
        place=places.of,
    )
    yield places.on_step
    watcher.close()


class _Places:
    """The part of all sequences that the present forward computes: (sequence, first position, positions)."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self._parts: Sequence[tuple[int, int, int]] = ()

    def on_step(self, kind: str, requests: list[Request]) -> None:
        """Note what the next forward gets."""
        if kind == "prefill":
            self._parts = [(r.number, 0, len(r.tokens)) for r in requests]
        else:
            self._parts = [(r.number, len(r.tokens) - 1, 1) for r in requests]

    def of(self, name: str, value: torch.Tensor) -> Placed | None:
        """Return the place of an activation: its sequences, and its tokens on the dimension that has them."""
        place = name.split(".", 2)[-1].removesuffix(".grad")
        at = (
            2
            if place.removesuffix(".out") in HEADS
            or value.dim() == len(("batch", "heads", "tokens", "width"))
            else 1
        )
        sizes = list(value.shape)
        if value.dim() <= at:
            return None
        whole = [self.work.requests, *sizes[1:]]
        whole[at] = self.work.length - 1  # the last token of a request is never computed on
        boxes = []
        for number, first, count in self._parts:
            offsets, own = [0] * len(sizes), [1, *sizes[1:]]
            offsets[0], offsets[at], own[at] = number, first, count
            boxes.append(Box(tuple(offsets), tuple(own)))
        return Placed(value, tuple(whole), tuple(boxes))


def plain_model(config: RunConfig) -> Serving:
    """Return the whole model on this process with its first weights and no cache, for `numerics compare --model`."""
    alone = replace(config, mesh=MeshConfig())
    axis = Axis("tp", 0, [0], None, HookList())
    context = serving_context(alone, axis, ServingSegments(HookList()), torch.device("cpu"))
    made = Serving(context, range(config.model.layers), first=True, last=True)
    made.serve(context, config.model.rope_base, POLICIES[config.numerics.policy].wide)
    made.to_empty(device="cpu")
    specs = specs_of(made)
    for name, parameter in made.named_parameters():
        whole = shard_part(specs[name], 1, 0).of(initial_values(name, specs[name], config.seed))
        parameter.data.zero_()
        parameter.data[tuple(slice(0, n) for n in whole.shape)] = whole.to(parameter.dtype)
    return made.eval()


def model_of(run: str | Path) -> Serving:
    """Return the plain model of a run folder's configuration, FP32 whatever the engine computed in.

    Raises `ConfigError` where the folder describes no run.
    """
    from reftrain.config.file import load

    found = json.loads((Path(run) / "run.json").read_text(encoding="utf-8"))
    model, numerics = dict(found["model"]), {"policy": "fp32"}
    config = load(
        None,
        {"model": model, "numerics": numerics, "run": {"seed": found.get("seeds", {}).get("weights", 0)}},
    )
    return plain_model(config)
