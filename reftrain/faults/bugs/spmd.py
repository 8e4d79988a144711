"""Bugs of SPMD 2-D sharding: an annotation that says something else than the tensor is."""

import torch
from torch.distributed.tensor import DTensor, Placement

from reftrain.faults.bugs import needs
from reftrain.faults.bugs.bug import BugField, Patches, Place, Values, bug
from reftrain.parallel.spmd import ADDEND, FEATURES, WHOLE, Annotated

PRODUCTS = {"w2": "feed_forward.w2", "wq": "attention.qkv.wq", "wv": "attention.qkv.wv"}


@bug(
    "P60",
    "tp",
    "the addends of a product annotated as whole: each rank keeps its features of its own addend",
    "output of the product's branch",
    needs.annotated,
    needs.axis("tp"),
    needs.layer,
    fields={
        "layer": needs.LAYER,
        "of": BugField("column-cut product: w2, wq or wv", "w2", choices=tuple(PRODUCTS)),
    },
)
def addend_taken_for_whole(patches: Patches, place: Place, values: Values) -> None:
    """Annotate one product's partial sums as if every rank held the sum."""
    del place
    wanted, original = f"layers.{values['layer']}.{PRODUCTS[str(values['of'])]}", Annotated.redistribute

    def planted(
        self: Annotated, x: torch.Tensor, before: Placement, after: Placement, label: str
    ) -> torch.Tensor:
        if label != wanted or before != ADDEND or self.mesh is None:
            return original(self, x, before, after, label)
        given = DTensor.from_local(x.contiguous(), self.mesh, [WHOLE], run_check=False)
        return given.redistribute(self.mesh, [FEATURES]).to_local().contiguous()

    patches.set(Annotated, "redistribute", planted)
