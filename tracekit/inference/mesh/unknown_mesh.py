"""Runs with an unknown mesh: all ranks are compared with each other, and the answer stays open."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tracekit.findings import Quality
from tracekit.matching.channels import WORLD
from tracekit.rank_events.operations import RankOps
from tracekit.store import InferredGroup, Run

KIND = "mesh_unknown"


def without_mesh(
    run: Run, ranks: Sequence[RankOps], world: Sequence[int], reason: str
) -> tuple[Run, list[RankOps]]:
    """Return `run` marked as having an unknown mesh, and its operations, without inferred groups.

    world: all ranks of the job. reason: why the mesh is unknown, and the remedy.
    """
    groups = tuple(g for g in run.groups if not isinstance(g, InferredGroup))
    if not any(len(g.ranks) > 1 for g in groups):  # else an operation without a group would be the world's
        groups = (*groups, InferredGroup(len(groups), tuple(world), (), ()))
    known = [g.group for g in groups]
    kept = [replace(r, group=np.where(np.isin(r.group, known), r.group, WORLD)) for r in ranks]
    row = Quality(KIND, None, len(world), reason)
    return replace(run, groups=groups, quality=(*run.quality, row)), kept


def is_unknown(run: Run) -> bool:
    """Whether the mesh of `run` is unknown, as `without_mesh` marks it."""
    return any(q.kind == KIND for q in run.quality)
