"""The two passes of a forced replay: in the run's formats, and on bounded tensors where that one differs."""

import sys
from collections.abc import Sequence
from pathlib import Path

from numerics.schema import Level
from reftrain.config.run import RunConfig
from reftrain.replay.engine import Replay
from reftrain.replay.first_values import State
from reftrain.replay.forcing.bounded_replay import BoundedReplay
from reftrain.replay.forcing.forced import ForcedWriter
from reftrain.replay.forcing.recorded_values import recorded_ranks
from reftrain.replay.formats import Formats, Orders


def repeat(engine: Replay, steps: int) -> None:
    """Repeat the steps up to `steps` and finish the capture."""
    for step in range(engine.first_step, steps):
        engine.apply(step, engine.gradients(step))
        print(f"step {step}", file=sys.stderr, flush=True)  # noqa: T201 - progress for who started this program
    engine.observer.close()


def force(
    run: Path,
    config: RunConfig,
    orders: Orders,
    formats: Formats,
    out: Path,
    level: Level,
    names: Sequence[str],
    steps: int,
    state: State,
) -> None:
    """Replay a run from its own recorded values. InputError where its capture is damaged."""
    ranks = recorded_ranks(run)
    repeat(Replay(config, orders, formats, ForcedWriter(config, out, level, names, ranks), state), steps)
    if any(rank.different for rank in ranks.values()):
        bounds = ForcedWriter(config, out, "tensors", (), ranks, bounds=True)
        repeat(BoundedReplay(config, orders, formats, bounds, state), steps)
