"""Slow links: transfers that take longer than their peers' though everybody arrived in time.

A transfer is what remains of an operation once its last member has come. Groups of one axis that send the same
message are peers; the ranks whose groups are slow on every axis where one can tell are the ones at the bad link.
"""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from tracekit.analysis.slowrank.statistics import (
    LINK_RATIO,
    LINK_RATIO_OF_TWO,
    LINK_REPEATS,
    MIN_LOST_SHARE,
    Z_LIMIT,
)
from tracekit.analysis.slowrank.what_if import Replayer
from tracekit.mesh import Mesh
from tracekit.tables.clock import Clocks
from tracekit.tables.intervals import I64
from tracekit.tables.match import Operations
from tracekit.tables.steps import F64, Steps
from tracekit.tables.waits import Waits


@dataclass(frozen=True)
class SlowLink:
    """Ranks that no collective can tell apart, and what the slow transfers cost a step (ns)."""

    ranks: tuple[int, ...]
    gain: float
    channels: tuple[int, ...]
    ratio: float  # slow transfer over that of its peers, time-weighted
    slow_ns: float  # median transfer on the slow channels
    peers_ns: float
    z: float


def slow_link(
    ops: Operations, waits: Waits, steps: Steps, mesh: Mesh, replayer: Replayer, clocks: Clocks
) -> SlowLink | None:
    """The slow link whose cure saves the most, if one is significant."""
    rows = waits.first_row
    inside = waits.complete & waits.timed
    if steps.labelled:
        inside &= np.isin(ops.step[rows], steps.numbers)
    families: dict[tuple[object, ...], dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for number in np.flatnonzero(inside):
        channel = ops.channels[int(ops.channel[rows[number]])]
        dims = mesh.dims_of(channel.members) if not channel.p2p else _p2p_dims(mesh, channel.members)
        if dims:
            families[dims, channel.p2p, str(ops.token[rows[number]])][channel.number].append(int(number))
    delivery, cured = waits.delivery.astype(np.float64), waits.transfer.astype(np.float64)
    slow: dict[int, list[tuple[float, float, float]]] = defaultdict(list)
    tested: set[int] = set()
    for channels in families.values():
        if len(channels) < 2:
            continue
        tested.update(channels)
        for c, (here, peers, z) in _compare(ops, waits, channels, delivery).items():
            if ops.channels[c].p2p and here - peers <= _doubt(clocks, ops.channels[c].members):
                continue
            slow[c].append((here, peers, z))
            late = np.maximum(delivery[channels[c]] - peers, 0.0)
            cured[channels[c]] = np.maximum(cured[channels[c]] - late, 0.0)
    if not slow:
        return None
    gain = replayer.step_ns(steps.own, steps.own) - replayer.step_ns(steps.own, steps.own, cured.tolist())
    if gain < MIN_LOST_SHARE * float(np.nanmean(steps.wall)):
        return None
    worst = max(slow.values(), key=lambda v: max(z for _, _, z in v))
    here, peers, z = max(worst, key=lambda v: v[0] - v[1])
    ranks = _at_the_link(ops, set(slow), tested)
    return SlowLink(ranks, gain, tuple(sorted(slow)), here / max(peers, 1.0), here, peers, z)


def _p2p_dims(mesh: Mesh, members: tuple[int, ...]) -> tuple[str, ...]:
    a, b = (mesh.coordinates.get(m) for m in members)
    return tuple(d for d, x, y in zip(mesh.order, a, b, strict=True) if x != y) if a and b else ()


def _compare(
    ops: Operations, waits: Waits, channels: dict[int, list[int]], spent: F64
) -> dict[int, tuple[float, float, float]]:
    """Channels slower than the median of the others: (its transfer, the peers', significance)."""
    places = {c: _by_place(ops, waits, n) for c, n in channels.items()}
    level = _both_ways(
        ops, {c: float(np.mean([np.median(spent[p]) for p in found])) for c, found in places.items()}
    )
    slow = {}
    for channel, numbers in channels.items():
        others = [level[c] for c in channels if c != channel]
        peers = float(np.median(others))
        apart = np.concatenate([np.abs(spent[p] - np.median(spent[p])) for p in places[channel]])
        noise = 1.4826 * float(np.median(apart)) / np.sqrt(len(numbers))
        between = 1.4826 * float(np.median([abs(v - peers) for v in others]))
        scale = max(float(np.hypot(noise, between)), 0.02 * peers, 1.0)
        z = (level[channel] - peers) / scale
        ratio = LINK_RATIO if len(others) > 1 else LINK_RATIO_OF_TWO
        if level[channel] > ratio * peers and z > Z_LIMIT:
            slow[channel] = (level[channel], peers, z)
    return slow


def _by_place(ops: Operations, waits: Waits, numbers: list[int]) -> list[I64]:
    """A channel's instances; messages apart by their place in the step, where enough steps repeat them.

    In a pipeline every second message of a slow link may be asked for late enough to hide it: that is no noise.
    """
    chosen = np.array(numbers)
    rows = waits.first_row[chosen]
    if not ops.channels[int(ops.channel[rows[0]])].p2p:
        return [chosen]
    steps = [chosen[ops.step[rows] == step] for step in np.unique(ops.step[rows])]
    places = min(len(step) for step in steps)
    if len(steps) < LINK_REPEATS or places == 1:
        return [chosen]
    return [np.array([step[place] for step in steps]) for place in range(places)]


def _doubt(clocks: Clocks, members: tuple[int, ...]) -> float:
    """By how much the clocks of two ranks may disagree beyond what was aligned, ns."""
    return 2.0 * sum(clocks.doubt.get(r, 0.0) for r in members)


def _both_ways(ops: Operations, level: dict[int, float]) -> dict[int, float]:
    """Mean transfer of both directions between two ranks: an error of their clocks cancels in it."""
    number = {ops.channels[c].members: c for c in level if ops.channels[c].p2p}
    back = {c: number.get(ops.channels[c].members[::-1], c) if ops.channels[c].p2p else c for c in level}
    return {c: (value + level[back[c]]) / 2 for c, value in level.items()}


def _at_the_link(ops: Operations, slow: set[int], tested: set[int]) -> tuple[int, ...]:
    """The ranks that the evidence cannot tell apart: in the most slow channels, and if any has no sound one, those."""
    bad = {r: 0 for c in slow for r in ops.channels[c].members}
    sound = dict.fromkeys(bad, 0)
    for c in tested:
        for r in ops.channels[c].members:
            if r in bad:
                (bad if c in slow else sound)[r] += 1
    most = max(bad.values())
    worst = [r for r, n in bad.items() if n == most]
    clear = [r for r in worst if not sound[r]] if most > 1 else []
    return tuple(sorted(clear or worst))
