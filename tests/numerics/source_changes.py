"""Changes of the trainer's source for tests, planted in each rank's process: benign ones, and bugs."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit
from torch.nn.attention import SDPBackend, sdpa_kernel

from reftrain.config.run import RunConfig
from reftrain.execute import gradients
from reftrain.faults.bugs.bug import Patches
from reftrain.model import decoder, layers
from reftrain.parallel import cross_entropy, ring, tensor
from reftrain.train import optimizer
from tests.reftrain import workers

Change = Callable[[Patches, int], None]


def nothing(patches: Patches, _: int) -> None:
    """Change nothing."""


def norm_by_square_root(patches: Patches, _: int, eps: float = 1.0) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        size = torch.sqrt((wide * wide).mean(-1, keepdim=True) + self.eps * eps)
        return (wide * (1.0 / size)).to(x.dtype) * self.weight

    patches.set(layers.RMSNorm, "forward", forward)


def norm_by_torch(patches: Patches, _: int) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return F.rms_norm(wide, (x.shape[-1],), None, self.eps).to(x.dtype) * self.weight

    patches.set(layers.RMSNorm, "forward", forward)


def norm_of_one_rank(patches: Patches, rank: int) -> None:
    if rank == 1:
        norm_by_square_root(patches, rank)


def silu_by_sigmoid(patches: Patches, _: int) -> None:
    patches.set(layers, "F", _Functional(silu=lambda x: x * torch.sigmoid(x)))


class _Functional:
    """torch.nn.functional with some functions exchanged."""

    def __init__(self, **other: Any) -> None:
        self.__dict__.update(other)

    def __getattr__(self, name: str) -> Any:
        return getattr(F, name)


def _attention(patches: Patches, way: Callable[..., torch.Tensor]) -> None:
    def attend(_: str, queries: Any, keys: Any, values: Any, batch: Any) -> torch.Tensor:
        groups = queries.shape[1] // keys.shape[1]
        keys, values = (t.repeat_interleave(groups, dim=1) for t in (keys, values))
        seen = batch.allowed
        if seen is None:
            seen = torch.ones(queries.shape[-2], keys.shape[-2], dtype=torch.bool).tril()
        return way(queries, keys, values, seen)

    patches.set(layers, "attend", attend)


def attention_by_softmax(patches: Patches, _: int, factor: float = 1.0) -> None:
    def way(q: Any, k: Any, v: Any, seen: Any) -> torch.Tensor:
        logits = q @ k.transpose(-2, -1) * (factor / math.sqrt(q.shape[-1]))
        weights = logits.masked_fill(~seen, -torch.inf).to(torch.float32).softmax(-1)
        return weights.to(v.dtype) @ v

    _attention(patches, way)


def scale_in_queries(patches: Patches, _: int, factor: float = 1.0) -> None:
    def way(q: Any, k: Any, v: Any, seen: Any) -> torch.Tensor:
        scale = factor / math.sqrt(q.shape[-1])
        return F.scaled_dot_product_attention(q * scale, k, v, attn_mask=seen, scale=1.0)

    _attention(patches, way)


def attention_by_math_kernel(patches: Patches, _: int) -> None:
    def way(q: Any, k: Any, v: Any, seen: Any) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    _attention(patches, way)


def rope_by_complex(patches: Patches, _: int) -> None:
    def rotate(x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        wide = torch.view_as_complex(x.to(rope.dtype).unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(wide * torch.complex(rope[0], rope[1])).flatten(-2).to(x.dtype)

    patches.set(layers, "rotate", rotate)


def product_in_halves(patches: Patches, _: int) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        half = x.shape[-1] // 2
        return x[..., :half] @ self.weight[:, :half].T + x[..., half:] @ self.weight[:, half:].T

    patches.set(layers.RowProjection, "forward", forward)


def entropy_by_logsumexp(patches: Patches, _: int) -> None:
    def entropy(logits: Any, targets: Any, axis: Any, vocab_size: int, smoothing: float = 0.0) -> Any:
        assert axis.size == 1
        assert not smoothing
        real = logits.float()[:, :vocab_size]
        valid = targets >= 0
        picked = real.gather(1, targets.clamp(min=0)[:, None])[:, 0]
        return torch.where(valid, real.logsumexp(1) - picked, 0.0)

    patches.set(decoder, "vocab_parallel_cross_entropy", entropy)


class _Torch:
    """torch with an exponential by powers of two."""

    exp = staticmethod(lambda x: torch.exp2(x * math.log2(math.e)))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def entropy_by_powers_of_two(patches: Patches, _: int) -> None:
    patches.set(cross_entropy, "torch", _Torch())


def ring_by_powers_of_two(patches: Patches, _: int) -> None:
    patches.set(ring, "torch", _Torch())


def updated(adam: Any, grads: Any, clip: Any) -> Iterator[tuple[Any, Any, torch.Tensor, torch.Tensor]]:
    """Yield group, state, clipped gradient and master weight of each parameter, its step counted.

    The weight that the caller leaves is copied to the parameter's shard.
    """
    names = {id(master): name for name, master in adam.masters.items()}
    for group in adam._inner.param_groups:
        for master in group["params"]:
            state, grad = adam._inner.state[master], grads[names[id(master)]].to(master.dtype)
            state["step"] += 1
            yield group, state, grad if clip is None else grad * clip, master.detach()
            adam.shards[names[id(master)]].detach().copy_(master.detach())


def update_written_out(patches: Patches, _: int) -> None:
    def step(self: Any, grads: Any, rate: float, clip: Any) -> None:
        for group, state, grad, weight in updated(self, grads, clip):
            (b1, b2), eps, count = group["betas"], group["eps"], float(state["step"])
            state["exp_avg"].copy_(b1 * state["exp_avg"] + (1 - b1) * grad)
            state["exp_avg_sq"].copy_(b2 * state["exp_avg_sq"] + (1 - b2) * grad**2)
            first, second = state["exp_avg"] / (1 - b1**count), state["exp_avg_sq"] / (1 - b2**count)
            weight.sub_(rate * (first / (second.sqrt() + eps) + group["weight_decay"] * weight))

    patches.set(optimizer.AdamW, "step", step)


def norm_of_gradient_by_torch(patches: Patches, _: int) -> None:
    patches.set(gradients, "local_square", _local_square)


def _local_square(stages: Any, tp: Any, replica: int, data: int = 0) -> torch.Tensor:
    squares = [
        torch.linalg.vector_norm(stage.local_gradients()[name].float()) ** 2
        for stage in stages
        for name, spec in stage.specs.items()
        if gradients.counts_in_norm(spec, tp.index)
        and not (replica or (data if spec.data_dim is None else 0))
    ]
    return torch.stack(squares).sum().reshape(1)


def larger_epsilon(patches: Patches, rank: int) -> None:
    norm_by_square_root(patches, rank, eps=1.5)


def slightly_larger_epsilon(patches: Patches, rank: int) -> None:
    norm_by_square_root(patches, rank, eps=1.01)


def larger_scale(patches: Patches, rank: int) -> None:
    attention_by_softmax(patches, rank, factor=1.01)


def missing_sum(patches: Patches, _: int) -> None:
    whole = tensor._Sum.forward

    def forward(ctx: Any, x: Any, axis: Any, label: str) -> Any:
        return x.clone() if label == "layers.0.feed_forward.w2" else whole(ctx, x, axis, label)

    patches.set(tensor._Sum, "forward", staticmethod(forward))


def doubled_bias(patches: Patches, _: int) -> None:
    patches.set(
        layers.RowProjection, "finish", lambda self, x: x if self.bias is None else x + self.bias + self.bias
    )


def one_wrong_mask(patches: Patches, rank: int) -> None:
    def way(q: Any, k: Any, v: Any, seen: Any) -> torch.Tensor:
        if rank == 1:
            seen = seen.clone()
            seen[..., -1, 0] = ~seen[..., -1, 0]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    _attention(patches, way)


def norm_and_missing_sum(patches: Patches, rank: int) -> None:
    norm_by_square_root(patches, rank)
    missing_sum(patches, rank)


CHANGES: dict[str, Change] = {
    one.__name__: one
    for one in (
        nothing,
        norm_by_square_root,
        norm_by_torch,
        norm_of_one_rank,
        silu_by_sigmoid,
        attention_by_softmax,
        scale_in_queries,
        attention_by_math_kernel,
        rope_by_complex,
        product_in_halves,
        entropy_by_logsumexp,
        entropy_by_powers_of_two,
        ring_by_powers_of_two,
        update_written_out,
        norm_of_gradient_by_torch,
        larger_epsilon,
        slightly_larger_epsilon,
        larger_scale,
        missing_sum,
        doubled_bias,
        one_wrong_mask,
        norm_and_missing_sum,
    )
}


def changed_run(rank: int, world: int, store: str, config: RunConfig, name: str) -> None:
    """Everything `reftrain run` does on a rank, with a change of source in it."""
    patches = Patches()
    try:
        CHANGES[name](patches, rank)
        workers.whole_run(rank, world, store, config)
    finally:
        patches.undo()
