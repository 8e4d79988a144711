"""The recorded output that the loss reads: the model's, or a module's in a model that gives its loss itself."""

import numpy as np

from numerics.local.forced_pass import ROOT
from numerics.local.records.recorded import RecordedRun


def last_stage(recorded: RecordedRun, rows: list[int]) -> list[int]:
    """Return the rows of the last stage of a pipeline: each stage calls a model of its own."""
    last = max((int(recorded.run["pp"][row]) for row in rows), default=0)
    return [row for row in rows if int(recorded.run["pp"][row]) == last]


def loss_input(recorded: RecordedRun, step: int) -> str:
    """Return the name of the output that the loss of a step reads, and which has a gradient of each position.

    Where the model's own output is one number, that is its loss, and the last module before it gives what it reads.
    """
    run, outputs = recorded.run, last_stage(recorded, recorded.rows(step, "forward", "activation", ROOT))
    if not outputs or max(int(run["numel"][row]) for row in outputs) > 1:
        return ROOT
    here = run.named("phase", "forward") & run.named("kind", "activation") & (run["step"] == step)
    here &= (run["rank"] == run["rank"][outputs[0]]) & (run["numel"] > 1)
    back = set(recorded.names(step, "backward", "activation_grad"))
    named = [(int(run["order"][row]), run.name("tensor", row)) for row in np.flatnonzero(here).tolist()]
    return max((one for one in named if f"{one[1]}.grad" in back), default=(0, ROOT))[1]
