"""Bugs of expert parallelism: routing, the experts' own data parallelism, the router's gradient."""

from dataclasses import replace

import torch

from reftrain.execute.sharded_stage import EXPERTS
from reftrain.faults.bugs import needs
from reftrain.faults.bugs.bug import Patches, Place, Values, bug
from reftrain.model.context import ModelContext
from reftrain.model.experts import Experts, Router
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
