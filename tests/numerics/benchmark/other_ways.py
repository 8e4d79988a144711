"""Benign changes of the trainer's source, planted in each rank: the same function by other kernels and formulas."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from reftrain.faults.bugs.bug import Patches
from reftrain.model import decoder, layers
from reftrain.parallel import ring
from reftrain.rank import comm
from reftrain.train import optimizer, trainer
from tests.numerics import source_changes

Change = Callable[[Patches, int], None]


class Functional:
    """torch.nn.functional with some functions exchanged."""

    def __init__(self, **other: Any) -> None:
        self.__dict__.update(other)

    def __getattr__(self, name: str) -> Any:
        return getattr(F, name)


def norm(patches: Patches, size: Callable[[torch.Tensor, float], torch.Tensor]) -> None:
    """Divide every norm's input by another formula of its root mean square."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide / size(wide, self.eps)).to(x.dtype) * self.weight

    patches.set(layers.RMSNorm, "forward", forward)


def norm_by_vector_norm(patches: Patches, _: int) -> None:
    def size(x: torch.Tensor, eps: float) -> torch.Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True) / math.sqrt(x.shape[-1])
        return torch.hypot(length, torch.tensor(math.sqrt(eps), dtype=x.dtype))

    norm(patches, size)


def norm_in_fp64(patches: Patches, _: int) -> None:
    norm(patches, lambda x, eps: (x.double().square().mean(-1, keepdim=True) + eps).sqrt())


def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The function compiled at its first call, because that imports the compiler."""
    made: list[Callable[..., torch.Tensor]] = []

    def call(*given: Any) -> torch.Tensor:
        if not made:
            made.append(torch.compile(function))
        return made[0](*given)

    return call


def norm_compiled(patches: Patches, _: int) -> None:
    divided = compiled(lambda x, eps: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps))

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return divided(wide, self.eps).to(x.dtype) * self.weight

    patches.set(layers.RMSNorm, "forward", forward)


def silu_compiled(patches: Patches, _: int) -> None:
    patches.set(layers, "F", Functional(silu=compiled(F.silu)))


def silu_by_tanh(patches: Patches, _: int) -> None:
    patches.set(layers, "F", Functional(silu=lambda x: 0.5 * x * (1 + torch.tanh(0.5 * x))))


def silu_by_exponential(patches: Patches, _: int) -> None:
    patches.set(layers, "F", Functional(silu=lambda x: x / (1 + torch.exp(-x))))


def gate_and_up_in_one(patches: Patches, _: int) -> None:
    """One product makes gate and up, which no module of their own computes any more."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        whole = self.context.tp.enter(x, f"{self.name}.w1")
        gate, up = F.linear(whole, torch.cat([self.w1.weight, self.w3.weight])).chunk(2, -1)
        return self.w2.finish(
            self.context.tp.leave(self.w2(F.silu(gate.contiguous()) * up), f"{self.name}.w2")
        )

    patches.set(layers.FeedForward, "forward", forward)


def product_by_einsum(patches: Patches, _: int) -> None:
    patches.set(layers.RowProjection, "forward", lambda self, x: torch.einsum("bsi,oi->bso", x, self.weight))


def product_transposed(patches: Patches, _: int) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return (self.weight @ x.transpose(-1, -2)).transpose(-1, -2)

    patches.set(layers.RowProjection, "forward", forward)


def product_in_four(patches: Patches, _: int) -> None:
    """Four parts of the sum, added in FP32, as a split-K kernel does."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        pairs = zip(x.chunk(4, -1), self.weight.chunk(4, -1), strict=True)
        return sum(a.float() @ b.float().T for a, b in pairs).to(x.dtype)  # type: ignore[union-attr]

    patches.set(layers.RowProjection, "forward", forward)


def words_by_product(patches: Patches, _: int) -> None:
    def embedding(tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.one_hot(tokens, weight.shape[0]).to(weight.dtype) @ weight

    patches.set(decoder, "F", Functional(embedding=embedding))


def rope_by_addcmul(patches: Patches, _: int) -> None:
    def rotate(x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        wide = x.to(rope.dtype)
        even, odd = wide[..., 0::2], wide[..., 1::2]
        turned = [
            torch.addcmul(even * rope[0], odd, rope[1], value=-1),
            torch.addcmul(odd * rope[0], even, rope[1]),
        ]
        return torch.stack(turned, dim=-1).flatten(-2).to(x.dtype)

    patches.set(layers, "rotate", rotate)


def rope_by_rotations(patches: Patches, _: int) -> None:
    """A product with a 2x2 rotation for each pair."""

    def rotate(x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        turn = torch.stack([torch.stack([rope[0], -rope[1]], -1), torch.stack([rope[1], rope[0]], -1)], -2)
        pairs = x.to(rope.dtype).unflatten(-1, (-1, 2))
        return torch.einsum("spij,bhspj->bhspi", turn, pairs).flatten(-2).to(x.dtype)

    patches.set(layers, "rotate", rotate)


def logits_of(queries: torch.Tensor, keys: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    logits = queries.float() @ keys.float().transpose(-2, -1) / math.sqrt(queries.shape[-1])
    return logits.masked_fill(~seen, -torch.inf)


def attention_by_powers_of_two(patches: Patches, _: int) -> None:
    def way(q: Any, k: Any, v: Any, seen: Any) -> torch.Tensor:
        logits = logits_of(q, k, seen) * math.log2(math.e)
        weights = torch.exp2(logits - logits.amax(-1, keepdim=True))
        return (weights / weights.sum(-1, keepdim=True)).to(v.dtype) @ v

    source_changes._attention(patches, way)


def attention_in_blocks(patches: Patches, _: int) -> None:
    """Two blocks of keys, merged by their maxima and sums, as flash kernels do."""

    def way(q: Any, k: Any, v: Any, seen: Any) -> torch.Tensor:
        half = k.shape[-2] // 2
        total, mixed, top = 0.0, 0.0, torch.full((*q.shape[:-1], 1), -1e30)
        for part in (slice(0, half), slice(half, None)):
            logits = logits_of(q, k[..., part, :], seen[..., part])
            new = torch.maximum(top, logits.amax(-1, keepdim=True).clamp(min=-1e30))
            weights, fade = torch.exp(logits - new), torch.exp(top - new)
            total = total * fade + weights.sum(-1, keepdim=True)
            mixed, top = mixed * fade + weights @ v[..., part, :].float(), new
        return (mixed / total).to(v.dtype)

    source_changes._attention(patches, way)


def scale_in_keys(patches: Patches, _: int) -> None:
    def way(q: Any, k: Any, v: Any, seen: Any) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k / math.sqrt(q.shape[-1]), v, attn_mask=seen, scale=1.0)

    source_changes._attention(patches, way)


def entropy_by_torch(patches: Patches, _: int) -> None:
    def entropy(logits: Any, targets: Any, axis: Any, vocab_size: int, smoothing: float = 0.0) -> Any:
        assert axis.size == 1
        return F.cross_entropy(
            logits.float()[:, :vocab_size], targets, reduction="none", label_smoothing=smoothing
        )

    patches.set(decoder, "vocab_parallel_cross_entropy", entropy)


def merge_by_maximum(patches: Patches, _: int) -> None:
    """The ring's blocks merged by the larger of their sums."""

    def merge(out: Any, lse: Any, block_out: Any, block_lse: Any) -> tuple[torch.Tensor, torch.Tensor]:
        top = torch.maximum(lse, block_lse)
        safe = top.masked_fill(top == -torch.inf, 0.0)
        one, two = torch.exp(lse - safe), torch.exp(block_lse - safe)
        total = one + two
        kept = total.masked_fill(total == 0, 1.0)
        return (out * one + block_out * two) / kept, torch.log(total) + safe

    patches.set(ring, "merge", merge)


class RankOrder:
    """torch.distributed whose sums are a gather and a sum in rank order instead of the library's ring."""

    def __getattr__(self, name: str) -> Any:
        return getattr(dist, name)

    def all_reduce(
        self, tensor: torch.Tensor, op: Any = dist.ReduceOp.SUM, group: Any = None, **how: Any
    ) -> Any:
        if op != dist.ReduceOp.SUM or how:
            return dist.all_reduce(tensor, op=op, group=group, **how)
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, tensor, group=group)
        return tensor.copy_(sum(parts[1:], parts[0]))


def sum_in_rank_order(patches: Patches, _: int) -> None:
    patches.set(comm, "dist", RankOrder())


def update_by_lerp(patches: Patches, _: int) -> None:
    """AdamW with moments by lerp and the bias corrections folded into the rate."""

    def step(self: Any, grads: Any, rate: float, clip: Any) -> None:
        for group, state, grad, weight in source_changes.updated(self, grads, clip):
            (b1, b2), eps = group["betas"], group["eps"]
            one, two = 1 - b1 ** float(state["step"]), 1 - b2 ** float(state["step"])
            state["exp_avg"].lerp_(grad, 1 - b1)
            state["exp_avg_sq"].lerp_(grad * grad, 1 - b2)
            below = state["exp_avg_sq"].sqrt() + eps * math.sqrt(two)
            weight.copy_(
                weight * (1 - rate * group["weight_decay"])
                - rate * math.sqrt(two) / one * (state["exp_avg"] / below)
            )

    patches.set(optimizer.AdamW, "step", step)


def clip_by_division(patches: Patches, _: int) -> None:
    patches.set(
        trainer,
        "clip_coefficient",
        lambda norm, greatest: 1 / (norm / greatest + 1e-6 / greatest).clamp(min=1.0) if greatest else None,
    )


OTHER_WAYS: dict[str, Change] = {
    one.__name__: one
    for one in (
        norm_by_vector_norm,
        norm_in_fp64,
        norm_compiled,
        silu_compiled,
        silu_by_tanh,
        silu_by_exponential,
        gate_and_up_in_one,
        product_by_einsum,
        product_transposed,
        product_in_four,
        words_by_product,
        rope_by_addcmul,
        rope_by_rotations,
        attention_by_powers_of_two,
        attention_in_blocks,
        scale_in_keys,
        entropy_by_torch,
        merge_by_maximum,
        sum_in_rank_order,
        update_by_lerp,
        clip_by_division,
    )
}
