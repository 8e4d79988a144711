"""Changes of the trainer's source as cases: other ways to compute the same, and bugs beyond the catalogue."""

from collections.abc import Iterator
from typing import Any

import torch

from reftrain.config.run import RunConfig
from reftrain.faults.bugs.bug import Patches
from reftrain.model import decoder
from tests.numerics.benchmark.case import Case, Tables, merged
from tests.numerics.benchmark.new_bugs import PLACES
from tests.numerics.benchmark.other_ways import OTHER_WAYS, Change
from tests.numerics.source_changes import CHANGES
from tests.reftrain import workers

DP3: Tables = {"mesh": {"dp": 3}}
ZERO3: Tables = {"mesh": {"dp": 3, "zero": 3}}
TP2: Tables = {"mesh": {"tp": 2}}
TP3: Tables = {
    "mesh": {"tp": 3, "sequence_parallel": False},
    "model": {"heads": 6, "kv_heads": 3, "dim": 48, "ffn_dim": 96, "vocab_size": 261},
}
CP2: Tables = {"mesh": {"cp": 2}}
RING3: Tables = {"mesh": {"cp": 3}, "numerics": {"cp_method": "ring"}}
PP2: Tables = {"mesh": {"pp": 2}}

EARLIER = (
    "norm_by_square_root",
    "norm_by_torch",
    "silu_by_sigmoid",
    "attention_by_softmax",
    "scale_in_queries",
    "attention_by_math_kernel",
    "rope_by_complex",
    "product_in_halves",
    "entropy_by_logsumexp",
    "entropy_by_powers_of_two",
    "ring_by_powers_of_two",
    "update_written_out",
    "norm_of_gradient_by_torch",
)
"""Benign changes of source that the forced replay was developed with."""

LAYOUTS: dict[str, Tables] = {
    "ring_by_powers_of_two": RING3,
    "merge_by_maximum": RING3,
    "entropy_by_powers_of_two": TP3,
    "sum_in_rank_order": TP3,
    "silu_by_tanh": TP3,
    "product_in_four": TP2,
    "attention_in_blocks": CP2,
    "rope_by_rotations": CP2,
    "product_by_einsum": PP2,
    "update_by_lerp": ZERO3,
    "gate_for_up": TP2,
    "heads_tiled": TP2,
    "rope_on_values": CP2,
    "window_of_sixteen": CP2,
    "residual_scaled": PP2,
    "stale_message": PP2,
    "narrow_message": PP2,
    "neighbours_piece": TP2,
    "last_keys_lost": CP2,
    "epsilon_in_root": ZERO3,
    "flipped_bit": ZERO3,
}
"""Layouts of the changes; DP 3 where none stands here."""

BF16 = frozenset(
    {
        "norm_compiled",
        "silu_by_exponential",
        "product_in_four",
        "attention_by_powers_of_two",
        "attention_by_math_kernel",
        "entropy_by_torch",
        "dropout_left_on",
        "heads_swapped",
        "rope_on_values",
        "documents_shifted",
        "norms_decay",
        "words_scaled",
        "attention_cold",
        "smaller_epsilon",
    }
)
"""Changes measured in BF16; all others in FP32."""

FINE = ("rounding", "drift", "identical", "signed_zero")
ALL: dict[str, Change] = {
    **{name: CHANGES[name] for name in EARLIER},
    **OTHER_WAYS,
    **{name: change for name, (change, _) in PLACES.items()},
}


PERTURBED = "perturbed"


def perturbed(patches: Patches, _: int) -> None:
    """Move every element of the embeddings' output by one unit in the last place, up or down by chance."""
    sound = decoder.Embedding.forward

    def forward(self: Any, tokens: torch.Tensor) -> torch.Tensor:
        out = sound(self, tokens)
        signs = torch.randint(0, 2, out.shape, generator=torch.Generator().manual_seed(0)) * 2 - 1
        return out * (1 + torch.finfo(out.dtype).eps * signs).to(out.dtype)

    patches.set(decoder.Embedding, "forward", forward)


def changed_cases() -> Iterator[Case]:
    """All changes of source; the baseline is one process of the unchanged trainer."""
    for name, change in ALL.items():
        policy = {"numerics": {"policy": "bf16" if name in BF16 else "fp32"}}
        layout = LAYOUTS.get(name, DP3)
        kept = {table: values for table, values in layout.items() if table == "model"}
        where = PLACES[name][1] if name in PLACES else None
        sizes = "·".join(
            f"{axis}{size}" for axis, size in layout["mesh"].items() if axis in {"tp", "cp", "pp", "dp"}
        )
        yield Case(
            name=f"{'N' if where else 'S'} {name.replace('_', ' ')} {sizes} {policy['numerics']['policy']}",
            what=(change.__doc__ or name.replace("_", " ")).strip(),
            parallel=merged(layout, policy),
            baseline=merged(kept, policy),
            verdicts=("precision_policy", "bug") if name == "narrow_message" else ("bug",) if where else FINE,
            where=where,
            change=name,
        )


def changed_run(rank: int, world: int, store: str, config: RunConfig, name: str) -> None:
    """Everything `reftrain run` does on a rank, with a change of source in it."""
    patches = Patches()
    try:
        (perturbed if name == PERTURBED else ALL[name])(patches, rank)
        workers.whole_run(rank, world, store, config)
    finally:
        patches.undo()
