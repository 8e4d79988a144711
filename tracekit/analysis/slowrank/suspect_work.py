"""How suspects spend their time beside their peers: questions whose answers decide between verdicts."""

from collections.abc import Sequence

import numpy as np

from tracekit.analysis.slowrank.case import Case
from tracekit.analysis.slowrank.explain import explain
from tracekit.tables.features import Features, read_features
from tracekit.thresholds.slowrank import (
    ATTENTION_ALONE,
    MAJORITY,
    MATES_SHARE,
    PEERS_SAMPLED,
    PRODUCTS_STEADY,
    ROLE_EQUALITY,
    ROLE_RANKS,
)
from tracekit.thresholds.tables import ENOUGH_STEPS


def features_of(case: Case, row: int) -> Features | None:
    """Features of the rank in `row` of Steps; None where it has no step whole."""
    return read_features(case.run, case.ops, case.steps, case.steps.ranks[row])


def peers_of(case: Case, row: int, suspects: Sequence[int], *, other_stages: bool = False) -> list[Features]:
    """Features of some unsuspected ranks of the stage of `row`, or of any stage; at most PEERS_SAMPLED."""
    stage = next(g for g in case.stages if row in g)
    pool = np.arange(len(case.steps.ranks)) if other_stages else stage
    rows = [int(r) for r in pool if r not in suspects and np.isfinite(case.steps.own[r]).any()]
    rows = rows[:: max(1, len(rows) // PEERS_SAMPLED)][:PEERS_SAMPLED]
    return [f for r in rows if (f := features_of(case, r)) is not None]


def only_attention(case: Case, rows: Sequence[int]) -> bool:
    """Whether the excess of the worst suspect, `rows[0]`, is attention alone; a slow device slows products as well."""
    mine, peers = features_of(case, rows[0]), peers_of(case, rows[0], rows)
    if mine is None or not peers:
        return False
    excess = mine.own - float(np.median([p.own for p in peers]))
    attention = mine.attention - float(np.median([p.attention for p in peers]))
    products = mine.matmul - float(np.median([p.matmul for p in peers]))
    usual = float(np.median([p.attention for p in peers]))
    share = attention / max(usual, 1.0)
    products_share = products / max(float(np.median([p.matmul for p in peers])), 1.0)
    return excess > 0 and attention >= ATTENTION_ALONE * excess and products_share < PRODUCTS_STEADY * share


def dealt_to_its_replica(case: Case, row: int) -> bool:
    """Whether all stages of a rank's replica work longer than their peers in the same steps, and shorter in others.

    The same documents pass through all stages. A slow device has no faster step, and makes no other stage longer.
    """
    rank = case.steps.ranks[row]
    line = set(case.mesh.line(rank, ("pp",))) - {rank}
    mates = [i for i, r in enumerate(case.steps.ranks) if r in line]
    values = case.found.value[[row, *mates]]
    values = values[:, np.isfinite(values).all(axis=0)]
    if not mates or values.shape[1] < ENOUGH_STEPS:
        return False
    mine, theirs = values[0], values[1:] * np.sign(values[0])
    together = bool((theirs >= MATES_SHARE * np.abs(mine)).all())
    return together and bool(mine.min() < -MATES_SHARE * np.abs(mine).mean())


def late_loaders(case: Case, rows: Sequence[int]) -> tuple[int, ...]:
    """The ranks among `rows` whose data loading explains most of their excess over other stages."""
    peers = peers_of(case, rows[0], rows, other_stages=True)
    if not peers:
        return ()
    own, loader = (float(np.median([getattr(p, name) for p in peers])) for name in ("own", "loader"))
    late = []
    for row in rows:
        mine = features_of(case, row)
        if mine is not None and mine.own > own and mine.loader - loader >= MAJORITY * (mine.own - own):
            late.append(row)
    return tuple(late)


def paused_hosts(case: Case, rows: Sequence[int]) -> tuple[int, ...]:
    """The ranks among `rows` whose excess over other stages is that their processes pause."""
    peers = peers_of(case, rows[0], rows, other_stages=True)
    found = [(row, features_of(case, row)) for row in rows] if peers else []
    return tuple(row for row, mine in found if mine is not None and explain(mine, peers)[0] == "host_stall")


def by_role(case: Case, rows: Sequence[int]) -> bool:
    """Whether `rows` are all ranks of tensor index 0 in their stages, several a stage, with similar excesses.

    If one rank of a tensor group loads and broadcasts the data, or logs, in every replica, the job was written so. A
    slow host or device does not pick the same index everywhere.
    """
    chosen = {case.steps.ranks[r] for r in rows}
    stages = {case.mesh.coords(r)["pp"] for r in chosen}
    excess = case.found.mean[list(rows)]
    if case.mesh.sizes["tp"] < 2 or not float(np.min(excess)) >= ROLE_EQUALITY * float(np.max(excess)):
        return False
    inside = [r for r in case.steps.ranks if case.mesh.coords(r)["pp"] in stages]
    for axes in (("tp",), ("tp", "cp")):
        told = [r for r in inside if all(case.mesh.coords(r)[a] == 0 for a in axes)]
        if chosen == set(told) and len(told) >= ROLE_RANKS * len(stages):
            return True
    return False
