"""Bugs of pipeline parallelism and of resharding."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from reftrain.config.run import RunConfig
from reftrain.execute import pipeline, sharded_stage
from reftrain.execute.gradients import sum_tied_gradients
from reftrain.execute.pipeline import PipelineExecutor
from reftrain.execute.sharded_stage import ShardedStage
from reftrain.faults.bugs import needs
from reftrain.faults.bugs.bug import BugField, Patches, Place, Values, bug
from reftrain.model import decoder, layers
from reftrain.model.attention import recomputed
from reftrain.model.batch import LocalBatch
from reftrain.model.decoder import layers_of_stages
from reftrain.model.parameters import Spec, initial_values
from reftrain.rank.comm import Axis
from reftrain.schedule.actions import Action
from reftrain.train import checkpoint, trainer


@bug("P29", "pp", "loss not divided by the valid tokens before backward", "all gradients, times tokens")
def undivided_loss(patches: Patches, place: Place, values: Values) -> None:
    """Start backward from the sum."""
    del place, values

    def planted(token_sum: torch.Tensor, valid_tokens: int) -> torch.Tensor:
        del valid_tokens
        return token_sum

    patches.set(pipeline, "step_loss", planted)


def fsdp_parameters(stage: ShardedStage) -> Iterator[FSDPParam]:
    """FSDP2's own records of a stage's parameters."""
    for module in stage.module.modules():
        if isinstance(module, FSDPModule):
            group = module._get_fsdp_state()._fsdp_param_group  # noqa: SLF001 - a bug of its inside
            yield from group.fsdp_params if group else ()


def drop_gradients(stage: ShardedStage) -> None:
    """Drop all gradients of a stage, including gradients that wait to be reduced."""
    for parameter in fsdp_parameters(stage):
        parameter.sharded_param.grad = None
        parameter.unsharded_accumulated_grad = None
        if hasattr(parameter, "_unsharded_param"):
            parameter._unsharded_param.grad = None  # noqa: SLF001 - as above


@bug(
    "P30",
    "pp",
    "gradients cleared before each micro-batch: only the last counts",
    "all gradients",
    needs.micro_batches,
)
def last_micro_batch_only(patches: Patches, place: Place, values: Values) -> None:
    """Clear before every backward."""
    del place, values
    backward = PipelineExecutor._backward  # noqa: SLF001 - the planted bug stands inside

    def planted(self: PipelineExecutor, action: Action) -> None:
        drop_gradients(self.stages[action.stage])
        backward(self, action)

    patches.set(PipelineExecutor, "_backward", planted)


@bug(
    "P67",
    "pp",
    "the last micro-batch is dropped: its loss has no backward, and divides all the same",
    "gradient of the output, last micro-batch",
    needs.micro_batches,
)
def dropped_micro_batch(patches: Patches, place: Place, values: Values) -> None:
    """Start the last micro-batch's backward from zeros."""
    del values
    last, tokens = place.config.micro_batches - 1, PipelineExecutor._tokens  # noqa: SLF001 - as in P30

    def planted(self: PipelineExecutor, micro_batch: int) -> float:
        return math.inf if micro_batch == last else tokens(self, micro_batch)

    patches.set(PipelineExecutor, "_tokens", planted)


@bug(
    "P31",
    "pp",
    "tied embedding's gradient not summed between the first and the last stage",
    "gradients of tok_embeddings.weight and output.weight",
    needs.axis("pp"),
    needs.model("tied_embeddings"),
)
def tied_unsummed(patches: Patches, place: Place, values: Values) -> None:
    """Leave each end its own gradient."""
    del place, values

    def planted(first: torch.Tensor | None, last: torch.Tensor | None, axis: Axis | None) -> None:
        if first is not None and last is not None:
            sum_tied_gradients(first, last, axis)

    patches.set(trainer, "sum_tied_gradients", planted)


def _recomputes(config: RunConfig, values: Values) -> str | None:
    del values
    if config.numerics.recompute == "none":
        return "nothing is recomputed: it needs numerics.recompute = selective or full"
    if not config.numerics.document_mask:
        return "micro-batches differ in their document masks only: it needs numerics.document_mask = true"
    return None


@bug(
    "P32",
    "pp",
    "recomputation takes micro-batch 0's mask whatever the micro-batch",
    "recomputed activations of micro-batch 1 and later",
    needs.micro_batches,
    _recomputes,
)
def stuck_micro_batch(patches: Patches, place: Place, values: Values) -> None:
    """Recompute with the step's first micro-batch."""
    del place, values
    start = PipelineExecutor._start_step  # noqa: SLF001 - as above
    first: list[LocalBatch] = []

    def remember(self: PipelineExecutor, batches: Sequence[LocalBatch], divisor: int) -> None:
        first[:] = batches[:1]
        start(self, batches, divisor)

    def planted(function: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
        again = False

        def stuck(*own: Any) -> torch.Tensor:
            nonlocal again
            if again:
                own = tuple(
                    replace(first[0], images=a.images) if isinstance(a, LocalBatch) else a for a in own
                )
            again = True
            return function(*own)

        return recomputed(stuck, *arguments)

    patches.set(PipelineExecutor, "_start_step", remember)
    patches.set(layers, "recomputed", planted)
    patches.set(decoder, "recomputed", planted)


def _two_chunks(config: RunConfig, values: Values) -> str | None:
    if config.pipeline.virtual_stages < 2:
        return "a rank holds one chunk: it needs pipeline.virtual_stages of 2 or more"
    if int(values["rank"]) >= config.mesh.pp:
        return f"pipeline rank {values['rank']} does not exist"
    return None


@bug(
    "P34",
    "pp",
    "chunks 0 and 1 of a pipeline rank swapped",
    "input of the layer that runs in the wrong place",
    needs.axis("pp"),
    _two_chunks,
    fields={"rank": BugField("pipeline rank that swaps its chunks", 0)},
    magnitudes=({"rank": 0}, {"rank": 1}),
)
def swap_chunks(patches: Patches, place: Place, values: Values) -> None:
    """Exchange the layers of two virtual stages."""
    del place
    rank = int(values["rank"])

    def planted(config: RunConfig) -> list[range]:
        stages = layers_of_stages(config)
        other = rank + config.mesh.pp
        stages[rank], stages[other] = stages[other], stages[rank]
        return stages

    patches.set(trainer, "layers_of_stages", planted)


def _one_chunk(config: RunConfig, values: Values) -> str | None:
    del values
    return "it needs pipeline.virtual_stages = 1" if config.pipeline.virtual_stages > 1 else None


def local_name(name: str, first: int) -> str:
    """Name of a parameter with its layer counted from the stage's first."""
    before, found, rest = name.partition("layers.")
    number, dot, inner = rest.partition(".")
    return f"{before}{found}{int(number) - first}{dot}{inner}" if found and number.isdigit() else name


@bug(
    "P36",
    "pp",
    "later stages load the layers of their local numbers",
    "parameters before step 0",
    needs.axis("pp"),
    _one_chunk,
)
def load_local_layers(patches: Patches, place: Place, values: Values) -> None:
    """Look values up under local layer numbers, at the start and in a checkpoint."""
    del values
    own = layers_of_stages(place.config)[place.coords["pp"]]
    original = checkpoint.Checkpointer.load

    def planted(name: str, spec: Spec, seed: int) -> torch.Tensor:
        return initial_values(local_name(name, own.start), spec, seed)

    def load(self: checkpoint.Checkpointer, path: Any) -> int:
        boxes = checkpoint.state_boxes

        def renamed(*arguments: Any, **named: Any) -> dict[str, Any]:
            return {local_name(key, own.start): box for key, box in boxes(*arguments, **named).items()}

        inner = Patches()
        inner.set(checkpoint, "state_boxes", renamed)
        try:
            return original(self, path)
        finally:
            inner.undo()

    patches.set(sharded_stage, "initial_values", planted)
    patches.set(checkpoint.Checkpointer, "load", load)
