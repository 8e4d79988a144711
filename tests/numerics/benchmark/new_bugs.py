"""Bugs of the trainer's source beyond the catalogue, planted in each rank; `PLACES` says where each first shows."""

import math
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own habit

from reftrain.execute.messages import Mailbox
from reftrain.faults.bugs.bug import Patches
from reftrain.model import batch as batches
from reftrain.model import decoder, layers
from reftrain.parallel import context as context_parallel
from reftrain.parallel import cross_entropy, tensor
from reftrain.schedule.actions import Kind
from reftrain.train import optimizer, trainer
from tests.numerics import source_changes
from tests.numerics.benchmark.case import Where
from tests.numerics.benchmark.other_ways import Change, Functional

FACTOR = r"factor|times|scal"
ANY_WEIGHT = r"[\w.]+\.(weight|bias)(\.(exp_avg|exp_avg_sq|master))?"


def feed_forward(patches: Patches, layer: int, core: Any) -> None:
    """Compute the feed-forward of one layer by `core(self, whole)` instead of silu(w1 x) * w3 x."""
    sound = layers.FeedForward.forward

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if not self.name.startswith(f"layers.{layer}."):
            return sound(self, x)
        whole = self.context.tp.enter(x, f"{self.name}.w1")
        return self.w2.finish(self.context.tp.leave(self.w2(core(self, whole)), f"{self.name}.w2"))

    patches.set(layers.FeedForward, "forward", forward)


def gelu_for_silu(patches: Patches, _: int) -> None:
    feed_forward(patches, 1, lambda self, x: F.gelu(self.w1(x)) * self.w3(x))


def gate_for_up(patches: Patches, _: int) -> None:
    def core(self: Any, x: torch.Tensor) -> torch.Tensor:
        gate, up = self.w1(x), self.w3(x)
        return F.silu(up) * gate

    feed_forward(patches, 0, core)


def dropout_left_on(patches: Patches, _: int) -> None:
    feed_forward(patches, 1, lambda self, x: F.dropout(F.silu(self.w1(x)) * self.w3(x), 0.05))


def heads_swapped(patches: Patches, _: int) -> None:
    """The first two heads of layer 0 change places after attention."""
    sound = layers.Attention.core

    def core(self: Any, *arguments: Any) -> torch.Tensor:
        out = sound(self, *arguments)
        if not self.name.startswith("layers.0."):
            return out
        return out[:, [1, 0, *range(2, out.shape[1])]]

    patches.set(layers.Attention, "core", core)


def heads_tiled(patches: Patches, _: int) -> None:
    """Copies of key/value heads stand head after head, not beside each other."""

    def attend(_: str, queries: Any, keys: Any, values: Any, batch: Any) -> torch.Tensor:
        groups = queries.shape[1] // keys.shape[1]
        keys, values = (t.repeat(1, groups, 1, 1) for t in (keys, values))
        return F.scaled_dot_product_attention(queries, keys, values, attn_mask=batch.allowed)

    patches.set(layers, "attend", attend)


def rope_on_halves(patches: Patches, _: int) -> None:
    def rotate(x: torch.Tensor, rope: torch.Tensor) -> torch.Tensor:
        one, two = x.to(rope.dtype).chunk(2, -1)
        turned = [one * rope[0] - two * rope[1], one * rope[1] + two * rope[0]]
        return torch.cat(turned, -1).to(x.dtype)

    patches.set(layers, "rotate", rotate)


def rope_on_values(patches: Patches, _: int) -> None:
    sound = layers.Queries.forward

    def forward(self: Any, x: torch.Tensor, rope: torch.Tensor) -> Any:
        queries, keys, values = sound(self, x, rope)
        return queries, keys, layers.rotate(values, rope)

    patches.set(layers.Queries, "forward", forward)


def residual_scaled(patches: Patches, _: int) -> None:
    def compute(self: Any, x: torch.Tensor, batch: Any) -> torch.Tensor:
        x = x + 1.002 * self.attention(self.attention_norm(x), batch)
        return x + self.feed_forward(self.ffn_norm(x))

    patches.set(decoder.Layer, "compute", compute)


def window_of_sixteen(patches: Patches, _: int) -> None:
    sound = batches.allowed_keys

    def allowed(queries_at: Any, keys_at: Any, documents: Any, **how: Any) -> torch.Tensor:
        near = queries_at.unsqueeze(1) - keys_at.unsqueeze(0) < 16
        return sound(queries_at, keys_at, documents, **how) & near

    patches.set(batches, "allowed_keys", allowed)


def documents_shifted(patches: Patches, _: int) -> None:
    """The last token of each document attends as if it belonged to the next."""
    sound = batches.allowed_keys

    def allowed(queries_at: Any, keys_at: Any, documents: Any, **how: Any) -> torch.Tensor:
        late = torch.cat([documents[:, 1:], documents[:, -1:]], 1)
        return sound(queries_at, keys_at, late, **how)

    patches.set(batches, "allowed_keys", allowed)


def last_target_wraps(patches: Patches, _: int) -> None:
    sound = batches.Cutter.cut

    def cut(self: Any, batch: Any) -> Any:
        made = sound(self, batch)
        targets = made.targets.clone()
        targets[:, -1] = batch.tokens[:, 0].to(targets)
        return replace(made, targets=targets)

    patches.set(batches.Cutter, "cut", cut)


def entropy(patches: Patches, change: Any) -> None:
    """Add `change(logits)` (N,) to each token's loss."""
    sound = cross_entropy.vocab_parallel_cross_entropy

    def other(logits: Any, targets: Any, *rest: Any) -> torch.Tensor:
        return sound(logits, targets, *rest) + (targets >= 0) * change(logits.float())

    patches.set(decoder, "vocab_parallel_cross_entropy", other)


def penalty_left_in(patches: Patches, _: int) -> None:
    entropy(patches, lambda logits: 1e-3 * logits.logsumexp(-1) ** 2)


def penalty_in_backward(patches: Patches, _: int) -> None:
    """A penalty of the logits whose value is subtracted again: only the gradient shows it."""

    def change(logits: torch.Tensor) -> torch.Tensor:
        penalty = 1e-3 * logits.logsumexp(-1) ** 2
        return penalty - penalty.detach()

    entropy(patches, change)


def logits_capped(patches: Patches, _: int) -> None:
    sound = cross_entropy.vocab_parallel_cross_entropy
    patches.set(
        decoder,
        "vocab_parallel_cross_entropy",
        lambda logits, *rest: sound(30.0 * torch.tanh(logits / 30.0), *rest),
    )


def norms_decay(patches: Patches, _: int) -> None:
    sound = optimizer.AdamW.__init__

    def init(self: Any, config: Any, shards: Any, decays: Any) -> None:
        sound(self, config, shards, dict.fromkeys(decays, True))

    patches.set(optimizer.AdamW, "__init__", init)


def update(patches: Patches, change: Any) -> None:
    """Let AdamW step by `change(group, state, count)`, which gives the denominator and the first correction."""

    def step(self: Any, grads: Any, rate: float, clip: Any) -> None:
        names = {id(master): name for name, master in self.masters.items()}
        for group in self._inner.param_groups:
            b1, b2 = group["betas"]
            for master in group["params"]:
                state, grad = self._inner.state[master], grads[names[id(master)]].to(master.dtype)
                grad = grad if clip is None else grad * clip
                state["step"] += 1
                state["exp_avg"].lerp_(grad, 1 - b1)
                state["exp_avg_sq"].mul_(b2).addcmul_(grad, grad, value=1 - b2)
                below, first = change(group, state, float(state["step"]))
                weight = master.detach()
                weight.mul_(1 - rate * group["weight_decay"])
                weight.addcdiv_(state["exp_avg"], below, value=-rate / first)
                self.shards[names[id(master)]].detach().copy_(weight)

    patches.set(optimizer.AdamW, "step", step)


def epsilon_in_root(patches: Patches, _: int) -> None:
    def change(group: Any, state: Any, count: float) -> Any:
        (b1, b2), eps = group["betas"], group["eps"]
        return (state["exp_avg_sq"] / (1 - b2**count) + eps).sqrt(), 1 - b1**count

    update(patches, change)


def no_second_correction(patches: Patches, _: int) -> None:
    def change(group: Any, state: Any, count: float) -> Any:
        return state["exp_avg_sq"].sqrt() + group["eps"], 1 - group["betas"][0] ** count

    update(patches, change)


def rate_of_next_step(patches: Patches, _: int) -> None:
    sound = optimizer.learning_rate
    patches.set(trainer, "learning_rate", lambda config, step, steps: sound(config, step + 1, steps))


def clipped_twice(patches: Patches, _: int) -> None:
    sound = optimizer.clip_coefficient

    def coefficient(norm: torch.Tensor, greatest: float) -> Any:
        clip = sound(norm, greatest / 8)
        return None if clip is None else clip * clip

    patches.set(trainer, "clip_coefficient", coefficient)


class _LastWins(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(tokens)
        ctx.shape = weight.shape
        return F.embedding(tokens, weight)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[None, torch.Tensor]:
        (tokens,) = ctx.saved_tensors
        out = grads[0].new_zeros(ctx.shape)
        out[tokens.flatten()] = grads[0].flatten(0, -2)
        return None, out


def words_overwritten(patches: Patches, _: int) -> None:
    """The gradient of a word that stands twice in a micro-batch keeps one of its addends."""
    patches.set(decoder, "F", Functional(embedding=_LastWins.apply))


def stale_message(patches: Patches, _: int) -> None:
    """The second micro-batch of a stage computes on the first one's activations."""
    sound, kept = Mailbox.take, {}

    def take(self: Any, action: Any) -> Any:
        got, buffer = sound(self, action)
        if action.kind is Kind.RECV_ACTIVATION:
            if action.micro_batch == 0:
                kept["first"] = got.clone()
            elif action.micro_batch == 1:
                got = kept["first"]
        return got, buffer

    patches.set(Mailbox, "take", take)


def narrow_message(patches: Patches, _: int) -> None:
    """Gradients travel between stages in BF16."""
    sound = Mailbox.send

    def send(self: Any, action: Any, given: torch.Tensor, output: Any) -> None:
        if action.kind is Kind.SEND_GRADIENT:
            given = given.bfloat16().to(given.dtype)
        sound(self, action, given, output)

    patches.set(Mailbox, "send", send)


def neighbours_piece(patches: Patches, _: int) -> None:
    """After one sum each tensor rank keeps the next one's piece of the sequence."""
    sound = tensor.scatter_sequence

    def scatter(x: torch.Tensor, axis: Any, label: str) -> torch.Tensor:
        if label == "layers.1.feed_forward.w2":
            x = x.roll(-x.shape[1] // axis.size, 1)
        return sound(x, axis, label)

    patches.set(tensor, "scatter_sequence", scatter)


def last_keys_lost(patches: Patches, rank: int) -> None:
    """One context rank sends zeros for its keys and values of layer 1."""
    sound = context_parallel.gather_keys_values

    def gather(keys: Any, values: Any, axis: Any, label: str) -> Any:
        if label.startswith("layers.1.") and axis.index == 1:
            keys, values = keys * 0, values * 0
        return sound(keys, values, axis, label)

    patches.set(layers, "gather_keys_values", gather)


def gradient_turned(patches: Patches, rank: int) -> None:
    """One rank turns the sign of one gradient before it is reduced."""
    if rank == 1:
        sound = layers.RowProjection.forward

        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            if self.weight.shape[1] != 128:
                return sound(self, x)
            return F.linear(x, 2 * self.weight.detach() - self.weight)

        patches.set(layers.RowProjection, "forward", forward)


def flipped_bit(patches: Patches, rank: int) -> None:
    """After the first update one bit of one weight turns on one rank."""
    sound = optimizer.AdamW.step

    def step(self: Any, grads: Any, rate: float, clip: Any) -> None:
        sound(self, grads, rate, clip)
        name = "layers.1.feed_forward.w1.weight"
        if rank == 1 and not getattr(self, "turned", False) and name in self.shards:
            self.turned = True
            self.shards[name].view(torch.int32).view(-1)[17] ^= 1 << 18

    patches.set(optimizer.AdamW, "step", step)


def words_scaled(patches: Patches, _: int) -> None:
    """Embeddings times 1.01."""
    patches.set(decoder, "F", Functional(embedding=lambda tokens, weight: 1.01 * F.embedding(tokens, weight)))


def attention_cold(patches: Patches, _: int) -> None:
    """Scores divided by the width of the key/value group's heads."""

    def way(q: Any, k: Any, v: Any, seen: Any) -> torch.Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=1 / math.sqrt(2 * q.shape[-1]))

    source_changes._attention(patches, way)


def smaller_epsilon(patches: Patches, rank: int) -> None:
    source_changes.norm_by_square_root(patches, rank, eps=0.1)


LOSS = r"loss|loss\.(max|sums)|output\.out"
FIRST_CORE = Where(r"layers\.0\.attention\.wo\.in", r"layers\.0\.attention.*")
MASK = Where(r"mask", r"")

PLACES: dict[str, tuple[Change, Where]] = {
    one.__name__: (one, where)
    for one, where in (
        (gelu_for_silu, Where(r"layers\.1\.feed_forward\.w2\.in", r"layers\.1\.feed_forward.*")),
        (gate_for_up, Where(r"layers\.0\.feed_forward\.w2\.in", r"layers\.0\.feed_forward.*")),
        (dropout_left_on, Where(r"layers\.1\.feed_forward\.w2\.in", r"layers\.1\.feed_forward.*")),
        (heads_swapped, replace(FIRST_CORE, explains="swap|permut|chang|order|column|head|place")),
        (heads_tiled, FIRST_CORE),
        (rope_on_halves, Where(r"layers\.0\.attention\.qkv\.(queries|keys)", r"layers\.0\.attention.*")),
        (rope_on_values, Where(r"layers\.0\.attention\.qkv\.values", r"layers\.0\.attention.*")),
        (residual_scaled, Where(r"layers\.0\.ffn_norm\.out", r"layers\.0(\.ffn_norm)?")),
        (window_of_sixteen, MASK),
        (documents_shifted, MASK),
        (last_target_wraps, Where(r"targets", r"", (), "boundar|last|column|end|place")),
        (penalty_left_in, Where(LOSS, r"(output|)")),
        (penalty_in_backward, Where(r"output\.logits\.grad", r"(output|)")),
        (logits_capped, Where(LOSS + r"|output\.logits\.grad", r"(output|)")),
        (norms_decay, Where(r"[\w.]*norm\.weight", r".*norm")),
        (epsilon_in_root, Where(ANY_WEIGHT, r".*")),
        (no_second_correction, Where(ANY_WEIGHT, r".*")),
        (rate_of_next_step, Where(r"learning_rate", r"")),
        (clipped_twice, Where(r"clip", r"")),
        (words_overwritten, Where(r"tok_embeddings\.weight\.grad", r"tok_embeddings|")),
        (
            stale_message,
            Where(r"layers\.1\.attention_norm\.out", r"layers\.1.*", ("pp",), "micro-batch|value of"),
        ),
        (
            narrow_message,
            Where(r"(stages|layers)\.0\.out\.grad", r"layers\.0.*|", ("pp",), "bf16|bfloat16"),
        ),
        (
            neighbours_piece,
            Where(
                r"layers\.1\.feed_forward\.(out|w2)",
                r"layers\.1.*",
                ("tp",),
                "swap|shift|roll|place|value of|rank",
            ),
        ),
        (last_keys_lost, Where(r"layers\.1\.attention\.(kv|wo\.in)", r"layers\.1\.attention.*", ("cp",))),
        (
            gradient_turned,
            Where(
                r"layers\.\d\.feed_forward\.w2\.weight\.grad",
                r"layers\.\d\.feed_forward.*",
                ("dp", "dp_cp"),
                FACTOR + "|sign|-1",
            ),
        ),
        (flipped_bit, Where(r"layers\.1\.feed_forward\.w1\.weight", r"layers\.1\.feed_forward.*", (), "bit")),
        (words_scaled, Where(r"tok_embeddings\.out", r"tok_embeddings", (), FACTOR)),
        (attention_cold, FIRST_CORE),
        (smaller_epsilon, Where(r"layers\.0\.attention_norm\.out", r"layers\.0\.attention_norm")),
    )
}
