"""Bugs of data parallelism and of FSDP."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard import _fsdp_param_group
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from reftrain.config.run import DataConfig, RunConfig
from reftrain.data.batches import IGNORED, Loader
from reftrain.execute.loss import global_valid_tokens
from reftrain.execute.pipeline import PipelineExecutor
from reftrain.execute.sharded_stage import AnnouncedAllGather, AnnouncedReduceScatter, ShardedStage
from reftrain.faults.bugs import needs
from reftrain.faults.bugs.bug import BugField, Patches, Place, Values, bug
from reftrain.faults.bugs.pipeline import fsdp_parameters
from reftrain.rank.comm import Axis
from reftrain.schedule.actions import Action
from reftrain.train import trainer
from reftrain.train.trainer import Gradients, Trainer

PARAMETERS = ("attention_norm", "attention.wo", "feed_forward.w1", "feed_forward.w2", "ffn_norm")


def own_chunk(parameter: FSDPParam, grad: torch.Tensor, group: "dist.ProcessGroup | None") -> torch.Tensor:
    """This rank's rows of an unreduced gradient, as large as its shard."""
    size, rank = (group.size(), group.rank()) if group is not None else (1, 0)
    rows = -(-grad.shape[0] // size)
    return grad[rank * rows : rank * rows + parameter.sharded_size[0]].reshape(parameter.sharded_size)


@bug(
    "P37",
    "dp",
    "one parameter skipped by the reduction's buffer: it keeps the rank's own gradient",
    "its gradient",
    needs.shards,
    needs.layer,
    needs.trained,
    fields={
        "layer": needs.LAYER,
        "of": BugField("parameter of the layer", PARAMETERS[1], choices=PARAMETERS),
    },
    magnitudes=({"layer": 1, "of": "feed_forward.w1"}, {"layer": 0, "of": "ffn_norm"}),
)
def skip_parameter(patches: Patches, place: Place, values: Values) -> None:
    """Reduce without the parameter, and take the rank's own rows for its shard."""
    del place
    wanted = f"layers.{values['layer']}.{values['of']}.weight"
    original: Any = vars(_fsdp_param_group)["foreach_reduce"]

    def planted(
        parameters: list[FSDPParam], grads: list[torch.Tensor], group: Any, *rest: Any, **named: Any
    ) -> Any:
        at = [p._param_fqn == wanted for p in parameters]  # noqa: SLF001 - a bug of its inside
        kept = [p for p, skipped in zip(parameters, at, strict=True) if not skipped]
        for parameter, grad, skipped in zip(parameters, grads, at, strict=True):
            if skipped:
                chunk = own_chunk(parameter, grad, group).to(parameter.sharded_param.dtype).clone()
                if parameter.sharded_param.grad is None:
                    parameter.sharded_param.grad = parameter.to_sharded_dtensor(chunk)
                else:
                    parameter.sharded_param.grad._local_tensor += chunk  # type: ignore[attr-defined] # noqa: SLF001 - as above
        grads[:] = [g for g, skipped in zip(grads, at, strict=True) if not skipped]
        return original(kept, grads, group, *rest, **named)

    patches.set(_fsdp_param_group, "foreach_reduce", planted)


@bug(
    "P38",
    "dp",
    "gradients divided by dp once too often, or once too seldom",
    "gradients after the reduction, times or over dp",
    needs.axis("dp"),
    needs.shards,
    fields={"mode": BugField("multiplied or divided by dp", "times", choices=("times", "divide"))},
    magnitudes=({"mode": "times"}, {"mode": "divide"}),
)
def wrong_divide(patches: Patches, place: Place, values: Values) -> None:
    """Give FSDP2 another divisor."""
    dp = place.config.mesh.dp
    _with_divisor(patches, float(dp) if values["mode"] == "divide" else 1.0 / dp)


def _with_divisor(patches: Patches, divisor: float) -> None:
    """Let FSDP2 divide reduced gradients by a number."""
    original = ShardedStage.__init__

    def planted(self: ShardedStage, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        for _, module in self._wrapped():
            module.set_gradient_divide_factor(divisor)

    patches.set(ShardedStage, "__init__", planted)


@bug(
    "P66",
    "cp",
    "gradients summed over dp·cp and divided as if by dp alone: too large by cp",
    "gradients after the reduction, times cp",
    needs.axis("cp"),
    needs.shards,
)
def divided_by_dp(patches: Patches, place: Place, values: Values) -> None:
    """Multiply the sum by cp: a mean over dp of what context ranks have divided by cp already."""
    del values
    _with_divisor(patches, 1.0 / place.config.mesh.cp)


def _uneven(config: RunConfig, values: Values) -> str | None:
    if values["level"] == "rank" and config.mesh.dp < 2:
        return "dp is 1: it shows from dp 2 on, or with level=micro_batch"
    return needs.micro_batches(config, values) if values["level"] == "micro_batch" else None


@bug(
    "P39",
    "dp",
    "mean of means with uneven counts of tokens",
    "gradients, by a ratio a rank or micro-batch",
    _uneven,
    fields={
        "level": BugField("means over each rank or each micro-batch", "rank", choices=("rank", "micro_batch"))
    },
    magnitudes=({"level": "micro_batch"}, {"level": "rank"}),
)
def mean_of_means(patches: Patches, place: Place, values: Values) -> None:
    """Divide by local counts."""
    config = place.config
    if values["level"] == "rank":

        def own_count(local: int, dp: Axis, device: torch.device) -> int:
            global_valid_tokens(local, dp, device)
            return max(local * dp.size, 1)

        patches.set(trainer, "global_valid_tokens", own_count)
        return
    backward = PipelineExecutor._backward  # noqa: SLF001 - the planted bug stands inside
    parts = config.micro_batches * config.mesh.dp * config.mesh.cp

    def planted(self: PipelineExecutor, action: Action) -> None:
        valid = int((self._batches[action.micro_batch].targets != IGNORED).sum())
        self._divisor = max(valid * parts, 1)
        backward(self, action)

    patches.set(PipelineExecutor, "_backward", planted)


@bug(
    "P41",
    "dp",
    "no-sync wrong: accumulated gradients reduced again with each micro-batch",
    "all gradients",
    needs.micro_batches,
    needs.shards,
)
def reduce_again(patches: Patches, place: Place, values: Values) -> None:
    """Reduce after each micro-batch what is accumulated so far; the sum of W equal shares is W times it."""
    del values
    mesh = place.config.mesh
    size = (mesh.dp_shard or mesh.dp) * mesh.cp
    arm = ShardedStage.arm

    def planted(self: ShardedStage, *, reduce: bool, last: bool) -> None:
        del reduce
        for parameter in fsdp_parameters(self):
            if parameter.sharded_param.grad is not None:
                parameter.sharded_param.grad._local_tensor.mul_(size)  # type: ignore[attr-defined] # noqa: SLF001 - a DTensor
        arm(self, reduce=True, last=last)

    patches.set(ShardedStage, "arm", planted)


@bug("P42", "dp", "data-parallel ranks read the same data", "inputs", needs.axis("dp"))
def same_data(patches: Patches, place: Place, values: Values) -> None:
    """Give every rank the first rank's share."""
    del place, values

    def planted(config: DataConfig, vocab_size: int, dp_size: int, dp_index: int) -> Loader:
        del dp_index
        return Loader(config, vocab_size, dp_size, 0)

    patches.set(trainer, "Loader", planted)


@bug(
    "P44",
    "fsdp",
    "gradients reduced in BF16 where the policy says FP32",
    "gradients after the reduction (precision)",
    needs.shards,
    needs.wide_reduction,
)
def narrow_reduction(patches: Patches, place: Place, values: Values) -> None:
    """Cast what is reduced to BF16."""
    del place, values
    original = AnnouncedReduceScatter.__call__

    def planted(
        self: AnnouncedReduceScatter,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> Any:
        narrow = output_tensor.to(torch.bfloat16)
        work = original(self, narrow, input_tensor.to(torch.bfloat16), group, op, async_op)
        output_tensor.copy_(narrow)
        return work

    patches.set(AnnouncedReduceScatter, "__call__", planted)


@bug(
    "P45",
    "fsdp",
    "weights gathered before the optimiser's step are used after it",
    "next step's forward in that layer",
    needs.shards,
    needs.steps,
    needs.layer,
    fields={"layer": needs.LAYER},
    magnitudes=({"layer": 0}, {"layer": 1}),
)
def stale_weights(patches: Patches, place: Place, values: Values) -> None:
    """Let a layer's all-gather give what it gave in the step before."""
    del place
    wanted = f"layers.{values['layer']}"
    compute, original = Trainer.compute_gradients, AnnouncedAllGather.__call__
    gathered: list[torch.Tensor | None] = [None, None]  # in this step, in the one before

    def next_step(self: Trainer, step: int) -> Gradients:
        gathered[1], gathered[0] = gathered[0], None
        return compute(self, step)

    def planted(
        self: AnnouncedAllGather,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: dist.ProcessGroup,
        async_op: bool = False,
    ) -> Any:
        work = original(self, output_tensor, input_tensor, group, async_op)
        if self.label == wanted:
            if work is not None:
                work.wait()
            if gathered[0] is None:
                gathered[0] = output_tensor.clone()
            if gathered[1] is not None:
                output_tensor.copy_(gathered[1])
        return work

    patches.set(Trainer, "compute_gradients", next_step)
    patches.set(AnnouncedAllGather, "__call__", planted)


def _accumulates(config: RunConfig, values: Values) -> str | None:
    del values
    if config.numerics.policy != "bf16":
        return "gradients are accumulated in their own format: it needs policy bf16"
    if config.mesh.shards_gradients and config.consecutive < 2:
        return "every micro-batch is reduced: it needs mesh.zero 1, or pipeline.consecutive of 2 or more"
    return None


@bug(
    "P55",
    "numerics",
    "gradients accumulated in BF16 where the policy says FP32",
    "gradients from the second micro-batch on (precision)",
    needs.micro_batches,
    _accumulates,
)
def narrow_accumulation(patches: Patches, place: Place, values: Values) -> None:
    """Leave the running sum in the format of computation."""
    del place, values

    def planted(self: FSDPParam) -> None:
        del self

    patches.set(FSDPParam, "to_accumulated_grad_if_needed", planted)
