"""What the pooled ranks do for schedules: several configurations in one process group."""

import datetime as dt

import torch
import torch.distributed as dist

from reftrain.config.run import RunConfig
from reftrain.model.decoder import Stage, layers_of_stages
from reftrain.model.parameters import initial_values, specs_of
from reftrain.rank.hooks import HookList
from reftrain.train.asynchronous import make_trainer
from tests.reftrain.workers import RankResult, boxes


def steps(rank: int, world: int, store: str, configs: list[RunConfig], *, update: bool) -> list[RankResult]:
    """Gradients of step 0 of each configuration, or with `update` its parameters after all its steps."""
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=dt.timedelta(seconds=60)
    )
    try:
        return [_one(config, update=update) for config in configs]
    finally:
        dist.destroy_process_group()


def updated(rank: int, world: int, store: str, configs: list[RunConfig]) -> list[RankResult]:
    """Parameters after all steps."""
    return steps(rank, world, store, configs, update=True)


def gradients(rank: int, world: int, store: str, configs: list[RunConfig]) -> list[RankResult]:
    """Gradients of step 0."""
    return steps(rank, world, store, configs, update=False)


def _one(config: RunConfig, *, update: bool) -> RankResult:
    made = make_trainer(config, HookList(), torch.device("cpu"))
    for step in range(config.steps if update else 1):
        got = made.compute_gradients(step)
        if update:
            made.apply_gradients(step, got.norm)
    values = made.local_parameters() if update else made.local_gradients()
    shapes = {name: spec.shape for name, spec in made.specs().items()}
    result = RankResult(got.loss, got.valid_tokens, float(got.norm), boxes(made, values), shapes)
    dist.barrier()
    return result


class Chunk(torch.nn.Module):
    """One of our stages as torch's pipeline runtime calls it: micro-batches come by number."""

    def __init__(self, stage, batches):
        super().__init__()
        self.stage, self.batches = stage, batches

    def forward(self, x, number):
        batch = self.batches[int(number[0])]
        return self.stage(None if self.stage.tok_embeddings is not None else x, batch)


def torch_runtime(
    rank: int, world: int, store: str, configs: list[RunConfig], folder: str
) -> list[RankResult]:
    """Gradients of step 0 by torch's own pipeline runtime, from the CSV of our tables."""
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=world, timeout=dt.timedelta(seconds=60)
    )
    try:
        return [_by_torch(rank, config, f"{folder}/{i}.csv") for i, config in enumerate(configs)]
    finally:
        dist.destroy_process_group()


def _by_torch(rank: int, config: RunConfig, path: str) -> RankResult:
    from torch.distributed.pipelining import PipelineStage
    from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

    made = make_trainer(config, HookList(), torch.device("cpu"))
    micro_batches = made.loader.step(0)
    batches = [made.cutter.cut(batch) for batch in micro_batches]
    valid = sum(batch.valid for batch in micro_batches)
    example = torch.zeros(config.data.micro_batch_size, config.data.seq_len, config.model.dim)
    parts, placed = {}, []
    for number in made.schedule.stages_of(rank):
        first, last = number == 0, number + 1 == config.stages
        stage = Stage(made.model_context(), layers_of_stages(config)[number], first=first, last=last)
        parts[number] = stage.to_empty(device="cpu")
        for name, spec in specs_of(stage).items():
            with torch.no_grad():
                stage.get_parameter(name).copy_(initial_values(name, spec, config.seed))
        output = torch.zeros(()) if last else example
        placed.append(
            PipelineStage(
                Chunk(stage, batches),
                number,
                config.stages,
                torch.device("cpu"),
                input_args=(example.clone().requires_grad_(not first),),
                output_args=(output.requires_grad_(),),
                group=made.mesh.pp.group,
            )
        )
    m = config.micro_batches
    runtime = _PipelineScheduleRuntime(placed, m, loss_fn=lambda total, _: total / valid, scale_grads=False)
    runtime._load_csv(path, format="compute_only")
    inputs = torch.zeros(m * example.shape[0], *example.shape[1:])
    runtime.step(inputs, number=torch.arange(m), target=torch.zeros(m), return_outputs=False)
    result = RankResult(
        0.0,
        valid,
        0.0,
        {
            n: (made.parts()[n], stage.get_parameter(n).grad.numpy().copy())
            for stage in parts.values()
            for n in specs_of(stage)
        },
        {name: spec.shape for name, spec in made.specs().items()},
    )
    dist.barrier()
    return result
