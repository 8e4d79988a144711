"""Each planted bug with a layout that shows it and where it must show first."""

from dataclasses import dataclass, field
from typing import Any

Tables = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Case:
    """A bug on a layout: kind and name of what differs first, and what must stay as it was."""

    fault: str
    tables: Tables
    kind: str
    name: str
    same: tuple[tuple[str, str], ...] = ()
    step: int = 0
    others: Tables = field(default_factory=dict)


TP3 = {
    "mesh": {"tp": 3},
    "model": {"heads": 6, "kv_heads": 3, "dim": 48, "ffn_dim": 96, "pad_vocab": True},
}
NO_SP = {"mesh": {"tp": 2, "sequence_parallel": False}}
WIDE = {"mesh": {"tp": 2}, "model": {"bias": True, "qk_norm": True, "fused_qkv": True}}
HSDP = {"mesh": {"dp": 4, "zero": 3, "dp_shard": 2}, "data": {"micro_batch_size": 1}}

IMAGES = {
    "mesh": {"pp": 2},
    "model": {"layers": 4, "cross_every": 1, "frozen": True},
    "encoder": {"layers": 1},
    "numerics": {"recompute": "full"},
}
INSIDE = {
    "mesh": {"pp": 3},
    "model": {"layers": 6, "cross_every": 1, "frozen": True},
    "encoder": {"layers": 1, "placement": "inside"},
}
SPLIT_IMAGES = {"mesh": {"tp": 2}, "model": {"cross_every": 1, "frozen": True}, "encoder": {"layers": 1}}
EXPERTS = {"mesh": {"tp": 2, "dp": 2, "ep": 2}, "model": {"experts": 4}}
BALANCED = {"mesh": {"tp": 2, "dp": 2, "ep": 2}, "model": {"experts": 4, "expert_balance": 0.1}}
SPMD = {"mesh": {"tp": 2, "dp": 2, "zero": 3, "sharding": "spmd_2d"}}

CASES = (
    Case("P01:layer=1", {"mesh": {"tp": 2}}, "grad", "layers.1.attention_norm.weight",
         (("grad", "layers.1.attention.qkv.wq.weight"), ("grad", "norm.weight"))),
    Case("P01:layer=1", NO_SP, "grad", "layers.1.attention_norm.weight",
         (("grad", "layers.1.attention.qkv.wq.weight"), ("grad", "norm.weight"))),
    Case("P02:layer=1", {"mesh": {"tp": 2}}, "forward", "layers.1.attention", (("forward", "layers.1.attention.wo"),)),
    Case("P02:layer=1,of=w2", NO_SP, "forward", "layers.1.feed_forward", (("forward", "layers.1.feed_forward.w2"),)),
    Case("P03", WIDE, "forward", "layers.0.attention.wo"),
    Case("P04", {"mesh": {"tp": 2}}, "forward", "layers.0.attention", (("forward", "layers.0.attention.wo"),)),
    Case("P04:of=w2", NO_SP, "forward", "layers.0.feed_forward", (("forward", "layers.0.attention"),)),
    Case("P06", TP3, "forward", "output", (("forward", "norm"),)),
    Case("P07", {"mesh": {"tp": 2}}, "forward", "output", (("forward", "norm"),)),
    Case("P08", {"mesh": {"tp": 2}}, "forward", "output", (("forward", "norm"),)),
    Case("P09", {"mesh": {"tp": 2}, "numerics": {"label_smoothing": 0.1}}, "forward", "output", (("forward", "norm"),)),
    Case("P11", {"mesh": {"tp": 2}}, "forward", "tok_embeddings", (("init", "tok_embeddings.weight"),)),
    Case("P12", WIDE, "forward", "layers.0.attention.qkv.q_norm", (("forward", "layers.0.attention.qkv.wqkv"),)),
    Case("P14", {"mesh": {"tp": 4}, "model": {"kv_heads": 2}}, "grad", "layers.0.attention.qkv.wk.weight",
         (("grad", "layers.0.attention.qkv.wq.weight"),)),
    Case("P15", WIDE, "grad", "layers.0.attention.qkv.q_norm.weight",
         (("grad", "layers.0.attention.qkv.wqkv.weight"),)),
    Case("P16", {"mesh": {"tp": 2}}, "init", "tok_embeddings.weight", (("init", "norm.weight"),)),
    Case("P17", {"mesh": {"tp": 2}}, "grad", "norm.weight", (("grad", "layers.0.attention_norm.weight"),)),
    Case("P21", {"mesh": {"cp": 2}}, "grad", "output.weight", (("loss", "0"), ("forward", "output"))),
    Case("P22", {"mesh": {"cp": 2}}, "input", "targets", (("forward", "norm"),)),
    Case("P23", {"mesh": {"cp": 2}}, "forward", "layers.0.attention.qkv", (("forward", "layers.0.attention.qkv.wk"),)),
    Case("P25", {"mesh": {"cp": 2}}, "forward", "layers.0.attention.wo", (("forward", "layers.0.attention.qkv"),)),
    Case("P25:by=1", {"mesh": {"cp": 3}, "numerics": {"cp_method": "ring"}}, "forward", "layers.0.attention.wo"),
    Case("P27", {"mesh": {"cp": 2}}, "logged", "loss", (("grad", "norm.weight"), ("param", "norm.weight"))),
    Case("P28", {"mesh": {"cp": 3}, "numerics": {"cp_method": "ring"}}, "forward", "layers.0.attention.wo"),
    Case("P29", {"mesh": {"pp": 2}}, "grad", "output.weight", (("forward", "norm"), ("logged", "loss"))),
    Case("P30", {"mesh": {"pp": 2}}, "grad", "output.weight", (("forward", "norm"), ("logged", "loss"))),
    Case("P30", {"mesh": {"pp": 2, "dp": 2, "zero": 3}}, "grad", "output.weight"),
    Case("P31", {"mesh": {"pp": 2}, "model": {"tied_embeddings": True}}, "grad", "tok_embeddings.weight",
         (("grad", "norm.weight"),)),
    Case("P32", {"mesh": {"pp": 2}, "numerics": {"recompute": "full"}}, "recomputed", "layers.1.attention.wo",
         (("forward", "norm"),)),
    Case("P32", {"numerics": {"recompute": "selective"}}, "grad", "layers.0.attention.qkv.wq.weight",
         (("forward", "norm"),)),
    Case("P34", {"mesh": {"pp": 2}, "model": {"layers": 4}, "pipeline": {"virtual_stages": 2}}, "init",
         "layers.2.attention_norm.weight"),
    Case("P36", {"mesh": {"pp": 2}}, "init", "layers.1.attention.qkv.wq.weight", (("init", "tok_embeddings.weight"),)),
    Case("P37:layer=1", {"mesh": {"dp": 3}}, "grad", "layers.1.attention.wo.weight",
         (("grad", "layers.1.attention.qkv.wq.weight"), ("grad", "layers.1.feed_forward.w2.weight"))),
    Case("P37:of=ffn_norm", HSDP, "grad", "layers.0.ffn_norm.weight",
         (("grad", "layers.0.attention.wo.weight"),)),
    Case("P38", {"mesh": {"dp": 3}}, "grad", "output.weight", (("logged", "loss"),)),
    Case("P38:mode=divide", {"mesh": {"dp": 3, "zero": 3}}, "grad", "output.weight", (("logged", "loss"),)),
    Case("P39", {"mesh": {"dp": 3}}, "grad", "output.weight", (("forward", "norm"),)),
    Case("P39:level=micro_batch", {}, "grad", "output.weight", (("forward", "norm"), ("logged", "loss"))),
    Case("P41", {"mesh": {"dp": 3}}, "grad", "output.weight", (("logged", "loss"),)),
    Case("P41", {"mesh": {"dp": 3, "zero": 2}}, "grad", "output.weight", (("logged", "loss"),)),
    Case("P42", {"mesh": {"dp": 3}}, "input", "tokens"),
    Case("P44", {"mesh": {"dp": 3}, "numerics": {"policy": "bf16"}}, "grad", "output.weight", (("logged", "loss"),)),
    Case("P45:layer=1", {"mesh": {"dp": 3}}, "forward", "layers.1.attention_norm",
         (("forward", "layers.0"),), step=1),
    Case("P45:layer=1", {"mesh": {"dp": 3, "zero": 3}}, "forward", "layers.1.attention_norm",
         (("forward", "layers.0"),), step=1),
    Case("P46", {"mesh": {"tp": 2}}, "norm", "norm", (("grad", "norm.weight"), ("logged", "loss"))),
    Case("P49:rank=1", {"mesh": {"tp": 2}}, "param", "layers.0.attention_norm.weight",
         (("norm", "norm"), ("param", "output.weight"))),
    Case("P52", {"mesh": {"tp": 2}}, "forward", "layers.0.attention_norm", (("forward", "tok_embeddings"),)),
    Case("P53", {"mesh": {"tp": 2}}, "forward", "layers.0.attention.wo", (("forward", "layers.0.attention.qkv"),)),
    Case("P53", {"mesh": {"cp": 3}, "numerics": {"cp_method": "ring"}}, "forward", "layers.0.attention.wo"),
    Case("P55", {"mesh": {"dp": 2}, "numerics": {"policy": "bf16"}}, "grad", "output.weight", (("logged", "loss"),)),
    Case("P56", {"mesh": {"tp": 2}}, "forward", "layers.0.attention.qkv", (("forward", "layers.0.attention.qkv.wk"),)),
    Case("P57:layer=1", EXPERTS, "forward", "layers.1.feed_forward.experts.0.w1",
         (("forward", "layers.1.attention"),)),
    Case("P58", EXPERTS, "grad", "layers.0.feed_forward.experts.0.w1.weight"),
    Case("P59", EXPERTS, "grad", "layers.1.feed_forward.router.weight", (("grad", "norm.weight"),)),
    Case("P60:layer=1", SPMD, "forward", "layers.1.feed_forward", (("forward", "layers.1.attention"),)),
    Case("P60:layer=1,of=wq", SPMD, "forward", "layers.1.attention.qkv", (("forward", "layers.0"),)),
    Case("P61", INSIDE, "grad", "encoder.patches.weight", (("forward", "norm"), ("grad", "output.weight"))),
    Case("P62", SPLIT_IMAGES, "grad", "encoder.patches.weight", (("forward", "norm"),)),
    Case("P63", BALANCED, "grad", "layers.0.feed_forward.router.weight", (("forward", "norm"), ("logged", "loss"))),
    Case("P63:by=ep", BALANCED, "grad", "layers.1.feed_forward.router.weight", (("forward", "norm"),)),
    Case("P64", EXPERTS, "grad", "layers.0.feed_forward.experts.0.w1.weight", (("grad", "norm.weight"),)),
    Case("P65", EXPERTS, "forward", "layers.0.feed_forward.router", (("forward", "layers.0.attention"),)),
    Case("P66", {"mesh": {"cp": 3}}, "grad", "output.weight", (("logged", "loss"),)),
    Case("P67", {"mesh": {"pp": 2}}, "grad", "output.weight", (("forward", "norm"), ("logged", "loss"))),
    Case("P32", IMAGES, "recomputed", "layers.2.attention.wo", (("forward", "norm"),)),
)  # fmt: skip
