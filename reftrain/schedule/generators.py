"""Pipeline schedules by name: each from its paper's definition, refusing by name what it cannot take.

The definitions stand in `one_way`, `bidirectional`, `asynchronous` and `zero_bubble`.
"""

from collections.abc import Callable

from reftrain.errors import ScheduleError
from reftrain.schedule.actions import Schedule
from reftrain.schedule.asynchronous import pipedream, pipedream_2bw
from reftrain.schedule.bidirectional import chimera, gems
from reftrain.schedule.one_way import (
    afab,
    backward_order,
    breadth_first,
    flexible,
    forward_order,
    gpipe,
    interleaved,
    one_f_one_b,
)
from reftrain.schedule.request import CONCATENATIONS, Request
from reftrain.schedule.zero_bubble import dualpipe_v, zb_h1

__all__ = ["SCHEMES", "backward_order", "forward_order", "generate", "make_schedule", "zero_coupling"]

SCHEMES: dict[str, Callable[[Request], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "interleaved": interleaved,
    "flexible": flexible,
    "breadth_first": breadth_first,
    "afab": afab,
    "gems": gems,
    "pipedream": pipedream,
    "pipedream_2bw": pipedream_2bw,
    "chimera": chimera,
    "zb_h1": zb_h1,
    "dualpipe_v": dualpipe_v,
}
DEFAULT_VIRTUAL = {"interleaved": 2, "dualpipe_v": 2}
"""Virtual stages of a rank where a scheme has no meaning with one."""
ASYNCHRONOUS = frozenset({"pipedream", "pipedream_2bw"})
"""Schemes that are not flushed after a step, and step the optimiser themselves."""
MOST_ACTIONS = 4_000_000
"""Largest table that is built: p·v·m·2 computations (16 x 8 x 4096 micro-batches, for example)."""


def make_schedule(
    name: str,
    ranks: int,
    virtual: int,
    micro_batches: int,
    consecutive: int,
    *,
    pipelines: int = 2,
    concatenation: str = "direct",
    steps: int = 1,
) -> Schedule:
    """Build a schedule by name; see `Request` for the sizes.

    Raises `ScheduleError` for an unknown name or sizes the scheme has no meaning for.
    """
    return generate(
        Request(name, ranks, micro_batches, virtual, consecutive, pipelines, concatenation, steps)
    )


def generate(request: Request) -> Schedule:
    """Build the schedule that is asked for."""
    name = request.name
    if name not in SCHEMES:
        raise ScheduleError("pipeline.schedule", f"{name!r} is unknown", f"choose {', '.join(SCHEMES)}")
    if min(request.ranks, request.virtual, request.micro_batches, request.consecutive, request.steps) < 1:
        raise ScheduleError("pipeline.schedule", "a size is below 1", "give p, v, m and k of at least 1")
    size = 2 * request.ranks * request.virtual * request.micro_batches * request.steps
    if size > MOST_ACTIONS:
        raise request.refuse("pipeline.schedule", f"would have {size} actions", f"stay below {MOST_ACTIONS}")
    if request.concatenation not in CONCATENATIONS:
        problem = f"has no concatenation {request.concatenation!r}"
        raise request.refuse("pipeline.concatenation", problem, f"choose among {', '.join(CONCATENATIONS)}")
    if name != "chimera" and (request.pipelines != 2 or request.concatenation != "direct"):
        raise request.refuse(
            "pipeline.schedule", "has no choice of pipelines or concatenation", "leave them out"
        )
    if request.steps > 1 and name not in ASYNCHRONOUS:
        raise request.refuse("pipeline.schedule", "is flushed after every step", "give 1 step")
    return SCHEMES[name](request)


def zero_coupling(ranks: int, micro_batches: int) -> tuple[str, int]:
    """Schedule and ZeRO stage that go together ("Scaling Llama 3 Training", pipeline with FSDP).

    From m = 2p on, 1F1B with ZeRO-1: gradients stay whole until the last micro-batch, and memory in flight
    is bounded by p. Below, all-forward-all-backward with ZeRO-2: few micro-batches are in flight anyway, and
    their gradients are reduce-scattered as each stage's run of backwards ends.
    """
    return ("1f1b", 1) if micro_batches >= 2 * ranks else ("afab", 2)
