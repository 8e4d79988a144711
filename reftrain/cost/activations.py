"""Bytes that autograd keeps of one micro-batch between its forward and its backward, by kind, and what passes by.

Two styles of kernels:

- *eager*: this repository's modules, operation by operation. RMSNorm keeps its input in FP32 and the
  normalised values, every projection its input, attention its heads (expanded to the query heads) and
  output, SwiGLU all four inner results.
- *fused*: what compiled or hand-fused layers keep. Only the residual stream, the results of matrix products
  and of attention are kept; norms, RoPE, SwiGLU's product and gathered sequences are made again in
  backward from these ("Scaling Llama 3 Training", section on memory: whatever later computation does not
  need is dropped).

`memory` adds them up over a schedule.
"""

from dataclasses import dataclass

from reftrain.cost.job import Job
from reftrain.cost.shapes import LayerKind


@dataclass(frozen=True)
class Kept:
    """Bytes of one micro-batch: of one layer, of the head, of the embedding."""

    norms: float = 0.0
    attention: float = 0.0
    feed_forward: float = 0.0
    head: float = 0.0

    @property
    def total(self) -> float:
        """All kinds."""
        return self.norms + self.attention + self.feed_forward + self.head


@dataclass(frozen=True)
class Passing:
    """Bytes that live only while a forward, or a backward, runs."""

    forward: float
    backward: float


def layer_kept(job: Job, recompute: str | None = None, kind: LayerKind = "layer") -> Kept:
    """Bytes a layer keeps; `recompute` goes before the job's.

    A layer that backward never reaches keeps nothing; a frozen one is counted as if it trained, which is too much by
    the inputs of its products.
    """
    if kind == "unreached":
        return Kept()
    mode = job.recompute if recompute is None else recompute
    if mode == "full":
        return Kept(norms=job.local_tokens * job.model.dim * job.compute_bytes)
    if kind == "cross":
        attention = _cross_attention(job)
    else:
        attention = _attention_inputs(job) if mode == "selective" else _attention(job)
    return Kept(_norms(job), attention, _feed_forward(job))


def _norms(job: Job) -> float:
    """Both norms of a layer with the sequences that the projections read."""
    c, dim, local = job.compute_bytes, job.model.dim, job.local_tokens
    if job.kernels == "fused":
        return 2 * local * (dim * c + 4)
    # The input in FP32 or wider (the input itself where it is), the normalised values, their product with
    # the weight, gathered under sequence parallelism.
    if job.mesh.annotated:  # a number a token for all ranks; the projections of attention read what is cut
        return 2 * (local * dim * (max(c, 4) + c) + 4 * job.tokens) + (local + job.tokens) * dim * c
    return 2 * (local * dim * (max(c, 4) + c) + 4 * local + job.tokens * dim * c)


def _attention_inputs(job: Job) -> float:
    """Queries, keys and values before they are expanded, and the output projection's input."""
    shapes = job.shapes
    return job.tokens * job.compute_bytes * (2 * shapes.attention_columns + 2 * shapes.kv_columns)


def _attention(job: Job) -> float:
    shapes, c, tokens = job.shapes, job.compute_bytes, job.tokens
    logsumexp = 4 * tokens * shapes.heads
    if job.ring:
        # Queries, own keys and values, output in FP32 or wider, and the copy the projection reads.
        own = tokens * c * (2 * shapes.attention_columns + 2 * shapes.kv_columns)
        return own + tokens * shapes.attention_columns * max(c, 4) + logsumexp
    gathered = job.micro_batch_size * job.seq_len
    if job.kernels == "fused":
        keys_values = 2 * gathered * c * shapes.kv_columns
        return tokens * c * 2 * shapes.attention_columns + keys_values + logsumexp
    keys_values = 2 * gathered * c * shapes.attention_columns
    mask = tokens * job.seq_len * c if job.attention == "sdpa" else 0
    whole = tokens * c * (job.model.heads * job.model.head_dim) if job.mesh.annotated else 0
    return tokens * c * 3 * shapes.attention_columns + keys_values + logsumexp + mask + whole


def _cross_attention(job: Job) -> float:
    """Queries, output and its copy, keys and values of the image tokens, and the tokens cast for both."""
    shapes, c = job.shapes, job.compute_bytes
    columns = shapes.kv_columns if job.kernels == "fused" else shapes.attention_columns
    own = 3 * job.tokens * c * shapes.attention_columns + 4 * job.tokens * shapes.heads
    return own + 2 * job.image_tokens * c * (columns + job.model.dim)


def encoder_kept(job: Job) -> Kept:
    """Bytes that the image encoder keeps of a micro-batch: both norms, heads and their output, the inner product."""
    config, c = job.encoder, job.compute_bytes
    wide = max(c, 4)
    layer = 2 * (wide + 2 * c) * config.dim + (5 * c * config.dim + 2 * c * config.ffn_dim) // job.mesh.tp
    ends = c * config.patch + (wide + 2 * c) * config.dim
    return Kept(head=job.image_tokens * (config.layers * layer + ends + c * job.model.dim))


def tokens_kept(job: Job) -> float:
    """Bytes of a step's image tokens on a pipeline rank, and of their gradients in FP32."""
    if job.encoder.placed == "inside":
        return 0.0
    return job.micro_batches * job.image_tokens * job.model.dim * (job.compute_bytes + 2 * _held_bytes(job))


def carried_kept(job: Job) -> Kept:
    """Bytes of a virtual stage's own copy of a micro-batch's image tokens, where they come with the activation."""
    if job.encoder.placed != "inside":
        return Kept()
    return Kept(head=job.image_tokens * job.model.dim * _held_bytes(job))


def _held_bytes(job: Job) -> int:
    """Bytes an element of image tokens that collect gradients."""
    return max(job.compute_bytes, 4) if job.encoder.sum_format == "fp32" else job.compute_bytes


def _feed_forward(job: Job) -> float:
    results = 2 if job.kernels == "fused" else 4
    rows = job.tokens * job.model.computed_experts
    sent = 2 * job.tokens * job.model.experts_per_token * job.model.dim if job.model.experts else 0
    return (results * rows * job.shapes.ffn_columns + sent) * job.compute_bytes


def head_kept(job: Job) -> Kept:
    """Bytes of the last norm and of the loss: exponentials of the logits in FP32 or wider."""
    c = job.compute_bytes
    loss = job.tokens * (job.shapes.vocab_rows * max(c, 4) + 22)
    return Kept(norms=_norms(job) / 2, head=loss)


def embedding_kept(job: Job) -> Kept:
    """Bytes of the embedding: the rows looked up, and which of them are this tensor rank's."""
    return Kept(head=9 * job.tokens)


def layer_passing(job: Job) -> Passing:
    """Largest temporaries of a layer."""
    c, tokens, dim = job.compute_bytes, job.tokens, job.model.dim
    wide = max(c, 4)
    inner = tokens * job.model.computed_experts * job.shapes.ffn_columns * c
    backward = 2 * inner + 2 * tokens * dim * c
    if job.kernels == "fused":
        return Passing(2 * tokens * dim * c, backward + inner)
    forward = 3 * tokens * job.shapes.attention_columns * wide
    if job.ring:
        scores = tokens * job.seq_len // job.mesh.cp * job.shapes.heads * wide
        forward += 3 * scores
        backward = max(backward, 5 * scores)
    return Passing(forward, backward)


def head_passing(job: Job) -> Passing:
    """Largest temporaries of the head: the logits in the computing format and several copies in FP32."""
    c, wide = job.compute_bytes, max(job.compute_bytes, 4)
    logits = job.tokens * job.shapes.vocab_rows
    if job.kernels == "fused":
        return Passing(logits * c, logits * c)
    return Passing(
        logits * (wide + (c if c < wide else 0) + wide), logits * (2 * wide + (c if c < wide else 0))
    )
