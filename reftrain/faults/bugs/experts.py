"""Bugs of expert parallelism: routing, the experts' own data parallelism, the router's gradient."""

from dataclasses import replace

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from reftrain.config.run import RunConfig
from reftrain.execute.sharded_stage import EXPERTS
from reftrain.faults.bugs import needs
from reftrain.faults.bugs.bug import BugField, Patches, Place, Values, bug
from reftrain.model import experts
from reftrain.model.context import ModelContext
from reftrain.model.experts import Experts, Router
from reftrain.parallel.experts import pulled
from reftrain.train.trainer import Trainer


@bug(
    "P57",
    "ep",
    "tokens of one layer routed twice to one expert: the second choice repeats the first",
    "rows that reach the experts",
    needs.model("experts"),
    needs.layer,
    fields={"layer": needs.LAYER},
)
def routed_twice(patches: Patches, place: Place, values: Values) -> None:
    """Let all choices of a token be its first."""
    del place
    wanted, original = f"layers.{values['layer']}.feed_forward", Experts.balanced

    def planted(self: Experts, odds: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        if self.name == wanted:
            chosen[..., 1:] = chosen[..., :1]
        return original(self, odds, chosen)

    patches.set(Experts, "balanced", planted)


@bug(
    "P58",
    "ep",
    "experts' gradients averaged over all of dp: divided by ep once too often",
    "gradients of the experts",
    needs.expert_ranks,
)
def averaged_over_dp(patches: Patches, place: Place, values: Values) -> None:
    """Divide as if every rank of ep held the same experts."""
    del values
    original = vars(Trainer)["_finish_gradients"]

    def planted(self: Trainer) -> None:
        for name, grad in self.local_gradients().items():
            if f"{EXPERTS}." in name:
                grad.div_(place.config.mesh.ep)
        original(self)

    patches.set(Trainer, "_finish_gradients", planted)


@bug(
    "P59",
    "tp",
    "the router's gradient not summed over the tensor ranks",
    "gradient of the routers, unequal on the tensor ranks",
    needs.axis("tp"),
    needs.model("experts"),
)
def router_unsummed(patches: Patches, place: Place, values: Values) -> None:
    """Forget that the router's gradient is partial."""
    del place, values
    original = Router.__init__

    def planted(self: Router, context: ModelContext) -> None:
        original(self, context)
        self.own_specs["weight"] = replace(self.own_specs["weight"], sums=())

    patches.set(Router, "__init__", planted)


def _balance(config: RunConfig, values: Values) -> str | None:
    if not config.model.expert_balance:
        return "there is no balance loss: it needs model.expert_balance above 0"
    size = config.mesh.tp if values["by"] == "tp" else config.mesh.ep
    return f"{values['by']} is 1: it shows from 2 on" if size < 2 else None


@bug(
    "P63",
    "ep",
    "the balance loss counts tp or ep times",
    "gradient of the router's scores",
    needs.model("experts"),
    _balance,
    fields={"by": BugField("ranks that count it once too often", "tp", choices=("tp", "ep"))},
    magnitudes=({"by": "tp"}, {"by": "ep"}),
)
def balance_counts_again(patches: Patches, place: Place, values: Values) -> None:
    """Multiply what the loss adds to the odds' gradient."""
    mesh = place.config.mesh
    factor = mesh.tp if values["by"] == "tp" else mesh.ep

    def planted(odds: torch.Tensor, pull: torch.Tensor) -> torch.Tensor:
        return pulled(odds, factor * pull)

    patches.set(experts, "pulled", planted)


@bug(
    "P64",
    "ep",
    "experts' gradients summed over all of dp: those of other experts are added",
    "gradients of the experts",
    needs.expert_ranks,
)
def summed_over_dp(patches: Patches, place: Place, values: Values) -> None:
    """Sum over ep behind the sum over the ranks that hold the same experts."""
    del place, values
    original = vars(Trainer)["_finish_gradients"]

    def planted(self: Trainer) -> None:
        for name, grad in self.local_gradients().items():
            if f"{EXPERTS}." in name:
                self.mesh.ep.all_reduce(grad, "ep.gradients")
        original(self)

    patches.set(Trainer, "_finish_gradients", planted)


def _computes_wide(config: RunConfig, values: Values) -> str | None:
    del values
    narrow = config.numerics.policy.startswith("bf16")
    return "the model computes in BF16 anyhow: choose policy fp32 or fp64" if narrow else None


@bug(
    "P65",
    "numerics",
    "the router's scores computed in BF16",
    "scores of the routers (precision)",
    needs.model("experts"),
    _computes_wide,
)
def narrow_router(patches: Patches, place: Place, values: Values) -> None:
    """Round the router's input and weight, and its scores."""
    del place, values

    def planted(self: Router, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x.bfloat16(), self.weight.bfloat16()).to(x.dtype)

    patches.set(Router, "forward", planted)
