"""Llama 2 70B served on 16 chips of TPU v5e. Source: "Llama 2 with PyTorch/XLA SPMD", figures 3, 4 and 6."""

from collections.abc import Sequence

from reftrain.config.file import load
from reftrain.cost.hardware import Hardware
from reftrain.infer.projection import Layout, Serving, project
from reftrain.papers.figure import Line

CHIPS = 16


def llama2_70b(hardware: Hardware) -> Sequence[Line]:
    """Return latency of one request, and throughput of 32, with weights in int8 and up to 2 048 tokens a request."""
    model = load(None, {"model": {"preset": "llama2_70b"}}).model
    one, many = (
        project(Serving(model, CHIPS, batch, 1048, 1000, weight_bytes=1), Layout(CHIPS, 1), hardware)
        for batch in (1, 32)
    )
    bare = (
        "the projection bounds the time from below: every product at the rate of memory, collectives at theirs; what "
        "the compiled program adds between them is not published"
    )
    rate = 32 / many.decode_s / CHIPS
    return [
        Line("70B on 16 chips, batch 1: latency", "ms a token", 17.0, 1e3 * one.decode_s, why=bare),
        Line("70B on 16 chips, batch 32: throughput", "tokens/s a chip", 42.0, rate, why=bare),
        Line("70B on 16 chips, batch 32: latency", "ms a token", None, 1e3 * many.decode_s),
    ]
