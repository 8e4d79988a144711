"""All cases of the benchmark, in the order of the table."""

from tests.trainers.kinds import (
    beyond_step,
    by_hand,
    context,
    data_parallel,
    experts,
    losses,
    mixed,
    noise,
    norms,
    pipelines,
    resumed,
    sharded,
)

KINDS = (
    beyond_step,
    data_parallel,
    losses,
    mixed,
    norms,
    noise,
    resumed,
    sharded,
    by_hand,
    pipelines,
    context,
    experts,
)
CASES = tuple(case for kind in KINDS for case in kind.CASES)
