"""Lists the classes of bugs that a run could not have exposed, whatever the verdict; every report names them.

A rule names a class of bugs and the condition under which a run is blind to it; conditions read the run's manifest
and the capture. Missing information counts as blind only where the rule can say so.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from numerics.columns import Columns
from numerics.comparison.joins.mesh_axes import axis_sizes

_AXIS_WORDS: Final = {
    "tp": "tensor parallelism (row and column sums, vocabulary shards, sequence parallelism)",
    "cp": "context parallelism (positions, masks, boundaries between chunks, ring merging)",
    "pp": "pipeline parallelism (stage order, messages, micro-batch keys)",
    "dp": "data parallelism (gradient reduction, scaling, sharded parameters)",
}


@dataclass(frozen=True)
class _Run:
    """Sizes of the axes, tables of the manifest (empty where there is none), and the capture, for the rules to read."""

    sizes: Mapping[str, int]
    tables: Mapping[str, Mapping[str, Any]]
    columns: Columns

    def field(self, table: str, name: str) -> Any:
        return self.tables.get(table, {}).get(name)

    @property
    def known(self) -> bool:
        """Whether there is a manifest to read."""
        return bool(self.tables.get("model"))


_Rule = Callable[[_Run], str | None]


def blind_spots(run: Columns) -> tuple[str, ...]:
    """Return the classes of bugs this run could not have exposed, in words, in a fixed order."""
    config = run.capture.config or {}
    tables = {name: table for name, table in config.items() if isinstance(table, dict)}
    seen = _Run(axis_sizes(run), tables, run)
    found = [text for rule in _RULES for text in [rule(seen)] if text]
    return (*_axes(seen), *found)


def _axes(run: _Run) -> list[str]:
    found = [f"bugs of {words}: {axis} is 1" for axis, words in _AXIS_WORDS.items() if run.sizes[axis] == 1]
    found += [f"order effects on {axis}: world size 2" for axis in _AXIS_WORDS if run.sizes[axis] == 2]
    return found


def _single_step(run: _Run) -> str | None:
    steps = np.unique(run.columns["step"])
    if (steps >= 0).sum() > 1:
        return None
    return "state carried from step to step (stale weights, optimiser moments, bias correction): one step"


def _single_micro_batch(run: _Run) -> str | None:
    if run.columns["micro_batch"].max(initial=-1) > 0:
        return None
    return "accumulation over micro-batches (cleared, doubled or mixed-up micro-batches, its format): one micro-batch"


def _equal_tokens(run: _Run) -> str | None:
    padding = run.field("data", "padding")
    if padding is None or padding > 0:
        return None
    return "means of means (loss weighted by rank or micro-batch, not by token): no padding, token counts are equal"


def _vocabulary(run: _Run) -> str | None:
    size, tp = run.field("model", "vocab_size"), run.sizes["tp"]
    if not isinstance(size, int) or tp == 1 or size % tp:
        return None
    return f"padded vocabulary rows: {size} tokens divide evenly over tp {tp}"


def _even_shards(run: _Run) -> str | None:
    dim, shards = run.field("model", "dim"), run.sizes["dp"] * run.sizes["cp"]
    if not isinstance(dim, int) or shards == 1 or dim % shards:
        return None
    return f"padding of parameter shards: width {dim} divides evenly over {shards} shards"


def _key_heads(run: _Run) -> str | None:
    heads, tp = run.field("model", "kv_heads"), run.sizes["tp"]
    if not isinstance(heads, int) or tp == 1 or heads < tp:
        return None
    return f"gradients of copied key/value heads: {heads} heads for tp {tp} need no copies"


def _clipping(run: _Run) -> str | None:
    clips = run.columns.named("tensor", "clip", "clip_coefficient", "clip_coef") & run.columns.named(
        "kind", "scalar"
    )
    if not clips.any() or not (run.columns.reals["min"][clips] >= 1).all():
        return None
    return "a wrong clip coefficient: no gradient was clipped"


def _switched_off(table: str, name: str, off: object, words: str) -> _Rule:
    """Return a rule: the run is blind to `words` where a field of the manifest has the value `off`."""

    def rule(run: _Run) -> str | None:
        value = run.field(table, name)
        return words if run.known and value is not None and value == off else None

    return rule


_RULES: Final[tuple[_Rule, ...]] = (
    _single_step,
    _single_micro_batch,
    _equal_tokens,
    _vocabulary,
    _even_shards,
    _key_heads,
    _clipping,
    _switched_off("model", "bias", off=False, words="biases added on every tensor rank: the model has none"),
    _switched_off("model", "qk_norm", off=False, words="norms inside attention: the model has none"),
    _switched_off("model", "tied_embeddings", off=False, words="tied embedding's gradients: not tied"),
    _switched_off("model", "fused_qkv", off=False, words="interleaving of a fused QKV projection: not fused"),
    _switched_off(
        "numerics", "recompute", off="none", words="wrong inputs to recomputation: nothing is recomputed"
    ),
    _switched_off("numerics", "label_smoothing", off=0, words="label smoothing: switched off"),
    _switched_off("numerics", "document_mask", off=False, words="document masks: switched off"),
    _switched_off(
        "numerics", "cp_method", off="all_gather", words="merging of ring attention's parts: no ring"
    ),
    _switched_off("numerics", "policy", off="fp32", words="bugs of BF16 formats: everything is FP32"),
    _switched_off("schedule", "virtual_stages", off=1, words="order of virtual stages: one a rank"),
    _switched_off(
        "parallel", "zero", off=1, words="re-gathered weights and repeated reductions of ZeRO-2/3: ZeRO-1"
    ),
    _switched_off(
        "optimizer", "weight_decay", off=0, words="weight decay on the wrong parameters: decay is 0"
    ),
)
