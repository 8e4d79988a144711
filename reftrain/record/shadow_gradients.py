"""Shadow accumulators: the cost of rounding while gradients are added up, measured in the run.

Gradients of weights are added over micro-batches, those of image tokens over the cross-attention layers of a rank.

Beside every gradient buffer three sums of the very same addends are kept, in BF16, in FP32 and in FP64. After each step
their distances are written to run/shadow/rankNNNNN.json ("numerics.shadow/1"), where `numerics advise` finds them.
The BF16 sum repeats autograd's own additions in their order, so that under policy bf16_pure it is the run's buffer bit
for bit, and under a wider policy what that buffer would have become. Switched on by `evidence.shadow_gradients`.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_param import FSDPParam

from reftrain.rank.events import StepMetrics
from reftrain.rank.hooks import Hooks, RunContext
from reftrain.rank.trainer_view import StageView, TrainerView
from reftrain.schedule.actions import Action

SCHEMA: Final = "numerics.shadow/1"


@dataclass
class Sums:
    """Sums of one parameter's gradients over the micro-batches of a step."""

    narrow: torch.Tensor | None = None
    wide: torch.Tensor | None = None
    widest: torch.Tensor | None = None
    addends: int = 0
    squares: float = (
        0.0  # Σ_{k≥2} ‖narrow s_k‖² where neither s_{k-1} nor the addend is zero: there it may round
    )

    def add(self, grad: torch.Tensor) -> None:
        """Add one micro-batch's gradient to all three."""
        self.addends += 1
        if self.narrow is None or self.wide is None or self.widest is None:
            self.narrow = grad.to(torch.bfloat16, copy=True)
            self.wide, self.widest = grad.to(torch.float32, copy=True), grad.to(torch.float64)
            return
        addend = grad.to(torch.bfloat16)
        rounds = (addend != 0) & (self.narrow != 0)
        self.narrow += addend
        self.wide += grad.to(torch.float32)
        self.widest += grad.to(torch.float64)
        self.squares += square(self.narrow * rounds)

    def figures(self) -> dict[str, float | int]:
        """Return distances to the FP64 sum, as squared norms, and the figures that a prediction needs."""
        if self.narrow is None or self.wide is None or self.widest is None:
            raise AssertionError("no gradient was added")
        return {
            "micro_batches": self.addends,
            "numel": self.widest.numel(),
            "squares_of_sums": self.squares,
            "square_of_last": square(self.narrow),
            "square": square(self.widest),
            "error_bfloat16": square(self.narrow.double() - self.widest),
            "error_float32": square(self.wide.double() - self.widest),
            "error_rounded_once": square(self.wide.to(torch.bfloat16).double() - self.widest),
        }


def square(x: torch.Tensor) -> float:
    """Squared Euclidean norm, in float64."""
    wide = x.double()
    return float(torch.dot(wide.reshape(-1), wide.reshape(-1)))


class Shadow(Hooks):
    """Keeps the shadow sums of one rank."""

    def __init__(self) -> None:
        self.folder, self.rank, self.world_size, self.kept, self.kept_images = Path(), 0, 1, "", ""
        self._stages: list[StageView] = []
        self._sums: dict[str, Sums] = {}
        self._images: dict[int, Sums] = {}
        self._micro_batch = -1
        self._watched: set[int] = set()
        self._rows: list[dict[str, Any]] = []

    def setup(self, context: RunContext) -> None:
        """Remember where the figures go."""
        self.folder = Path(context.config.out) / "shadow"
        self.rank, self.world_size = context.rank, context.config.mesh.world_size
        policy = context.config.numerics.policy
        self.kept = "bfloat16" if policy == "bf16_pure" else "float32"
        narrow = policy in {"bf16", "bf16_pure"} and context.config.encoder.sum_format == "compute"
        self.kept_images = "bfloat16" if narrow else "float32"

    def built(self, trainer: TrainerView) -> None:
        """Take the stages to listen to, and the modules that read image tokens."""
        self._stages = list(trainer.stages.values())
        for stage in self._stages:
            for module in stage.module.modules():
                if getattr(module, "reads_images", False):
                    module.register_forward_pre_hook(self._on_images)

    def _on_images(self, _: nn.Module, arguments: tuple[Any, ...]) -> None:
        """Add the gradient that a cross-attention layer gives to the image tokens of the present micro-batch."""
        images = arguments[1]
        if images.requires_grad:
            sums = self._images.setdefault(self._micro_batch, Sums())
            images.register_hook(lambda grad: sums.add(grad.detach()))

    def action_begin(self, action: Action) -> None:
        """Listen to parameters that have come to exist since (FSDP2 makes them at their first use)."""
        self._micro_batch = action.micro_batch
        for stage in self._stages:
            for module in stage.module.modules():
                if isinstance(module, FSDPModule):
                    group = module._get_fsdp_state()._fsdp_param_group  # noqa: SLF001 - it has no public name
                    for parameter in group.fsdp_params if group else ():
                        self._listen(parameter)

    def _listen(self, parameter: FSDPParam) -> None:
        if id(parameter) in self._watched or not hasattr(parameter, "_unsharded_param"):
            return
        name = parameter._param_fqn  # noqa: SLF001 - as above
        if name is None or not parameter._unsharded_param.requires_grad:  # noqa: SLF001 - as above
            return

        def added(grad: torch.Tensor) -> None:
            self._sums.setdefault(name, Sums()).add(grad.detach())

        parameter._unsharded_param.register_hook(added)  # type: ignore[no-untyped-call] # noqa: SLF001 - as above
        self._watched.add(id(parameter))

    def step_end(self, metrics: StepMetrics) -> None:
        """Write the step's figures; the file appears whole."""
        for name, sums in sorted(self._sums.items()):
            self._rows.append(
                {"step": metrics.step, "tensor": f"{name}.grad", "kept": self.kept, **sums.figures()}
            )
        for _, sums in sorted(self._images.items()):
            row = {"step": metrics.step, "tensor": "image_tokens.grad", "kept": self.kept_images}
            self._rows.append({**row, **sums.figures()})
        self._sums.clear()
        self._images.clear()
        self.folder.mkdir(parents=True, exist_ok=True)
        document = {
            "schema": SCHEMA,
            "rank": self.rank,
            "world_size": self.world_size,
            "rows": self._rows,
        }
        temporary = self.folder / f".rank{self.rank:05d}.tmp"
        temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")
        temporary.replace(self.folder / f"rank{self.rank:05d}.json")
