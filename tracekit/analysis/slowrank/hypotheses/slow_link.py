"""Slow links: transfers that take longer than their peers' transfers although all members arrived in time.

The transfer of an operation begins when its last member arrives. Groups along one axis that carry the same message are
peers. The ranks at the slow link are in slow groups on every axis that was compared.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np

from tracekit.analysis.slowrank.hypotheses.link_cure import dear_channels, price_of
from tracekit.analysis.slowrank.price import Price, may_cost_ns
from tracekit.case.case import Case
from tracekit.expected.like_transfers import (
    beside,
    comparable,
    is_sure,
    message_of,
    short_pipeline,
    uncompared_lateness,
)
from tracekit.expected.nodes import (
    LONE_LINK,
    UNPLACED,
    Nodes,
    at_the_link,
    lone_links,
    nodes_of,
    on_slow_node,
    whole_boundaries,
)
from tracekit.expected.sound_transfers import fit_hardware
from tracekit.matching.message_order import UNKNOWN_SIZE
from tracekit.step_graph.statistics import MAD_TO_SIGMA, NORMAL_95, level_of, spread_of_others
from tracekit.thresholds.slowrank import (
    KIND_RATIO,
    NETWORKS_RATIO,
    NO_ACCIDENT,
    TIME_SLICE_NS,
    USUAL_VARIATION,
    Z_LIMIT,
)
from tracekit.units import F64, I64


@dataclass(frozen=True)
class SlowLink:
    """The ranks at a slow link, which collectives cannot separate, and the price of its transfers; ns."""

    ranks: tuple[int, ...]
    price: Price  # the saving of a step with its peers' transfers
    channels: tuple[int, ...]
    ratio: float  # the slow transfer over its peers' transfer
    slow_ns: float  # median transfer on the slow channels
    peers_ns: float
    z: float
    late: float = 0.0  # the lateness of its messages beyond their peers', on the slowest channel, ns a step
    guessed: bool = False  # only messages with inferred peers show it, on clocks that they align
    layout: str = ""  # the reason that a border between nodes may explain it; empty where none does
    delays: F64 = field(default_factory=lambda: np.zeros(0), compare=False)  # of each instance

    @property
    def doubted(self) -> bool:
        """Whether something else may explain it: wrong peers, or the layout of nodes."""
        return self.guessed or bool(self.layout)

    def may_cost(self, least: float) -> bool:
        """Return whether its price may reach `least`, ns a step."""
        return max(self.price.high, may_cost_ns(self.price.high, self.late)) >= least


@dataclass(frozen=True)
class _Slowness:
    """The transfer of one message on a slow channel and on its peers; ns."""

    here: float
    peers: float
    z: float


def slow_link(case: Case) -> SlowLink | None:
    """The slow links with their price, however low; None where none is significant.

    Compares channels along the same mesh axes that carry the same message, separately between nodes and inside nodes.
    The only link between nodes has no peer: it is compared with the others, which proves nothing, and is left out where
    it fits described hardware.
    """
    nodes, least = nodes_of(case), case.threshold_ns
    found = _slowest(case, nodes)
    if found is not None and not nodes and found.ratio < NETWORKS_RATIO:
        if whole_boundaries(case, found.channels):
            return None if fit_hardware(case, found.channels) else replace(found, layout=UNPLACED)
        return found
    if nodes and (found is None or not found.may_cost(least)):
        lone = lone_links(case, nodes)
        alone = _slowest(case, {}, lone) if lone else None
        if alone is not None and alone.may_cost(least) and not fit_hardware(case, alone.channels):
            return replace(alone, layout=LONE_LINK)
    return found


def _priced(case: Case, late: F64, uncompared: tuple[F64, F64, F64]) -> tuple[F64, Price]:
    """(likely lateness of each instance in ns, price) of compared transfers that are `late` and of `uncompared` ones.

    The lateness of the latter is known at least, likely and at most.
    """
    least, likely, most = (np.maximum(late, more) for more in uncompared)
    price = price_of(case, likely)
    if most.sum() > least.sum():
        price = Price.between(price_of(case, least).low, price.best, price_of(case, most).high)
    return likely, price


def _slowest(case: Case, nodes: Nodes, only: Collection[int] | None = None) -> SlowLink | None:
    """`slow_link` among channels of equal reach over `nodes` (any reach where empty), restricted to channels `only`."""
    slow, tested, late, sure = _slow_channels(case, nodes, only)
    if not slow:
        return None
    dear = dear_channels(case, slow, late)
    slow = {c: several for c, several in slow.items() if c in dear}
    ranks = on_slow_node(case, set(slow), set(tested), nodes) or at_the_link(case, set(slow), set(tested))
    passing = _slow_channels(case, nodes, only, frozenset(ranks))
    if case.table is None and passing[0]:
        slow, tested, late, again = passing
        dear, sure = set(slow), sure or again
    late = np.where(np.isin(case.ops.channel[case.waits.first_row], list(dear)), late, 0.0)
    pairs = {c: [(f.here, f.peers) for f in several] for c, several in slow.items()}
    late, price = _priced(case, late, uncompared_lateness(case, pairs, tested, late, ranks, nodes))
    channel = case.ops.channel[case.waits.first_row]
    longest = max(float(late[channel == c].sum()) for c in slow) / case.steps.count
    most = max(max(slow.values(), key=lambda v: max(s.z for s in v)), key=lambda s: s.here - s.peers)
    return SlowLink(
        ranks, price, tuple(sorted(slow)), most.here / max(most.peers, 1.0), most.here, most.peers, most.z,
        longest, not sure, delays=late,
    )  # fmt: skip


def _slow_channels(
    case: Case, nodes: Nodes, only: Collection[int] | None, at: frozenset[int] = frozenset()
) -> tuple[dict[int, list[_Slowness]], dict[int, list[int]], F64, bool]:
    """(slow channels, compared instances by channel, lateness of each instance in ns, whether peers are certain).

    Where a slow link is known to be `at` ranks, channels that all of them share pass it, so that each is slow by what
    is beyond its noise, however little, in each of its calls of unknown size.
    """
    ops = case.ops
    message, scale = message_of(case)
    brief = briefest(case) / scale
    delivery = case.waits.delivery.astype(np.float64)
    late, scheduled, sure = np.zeros(len(delivery)), _thread_doubt(case), False
    slow: dict[int, list[_Slowness]] = defaultdict(list)
    tested: dict[int, list[int]] = defaultdict(list)
    families = comparable(case, message, nodes, bounded=True)
    for channels in [part for family in families for part in _parts(case, family)] if at else families:
        whole = {c for c, numbers in channels.items() if case.waits.complete[numbers].all()}
        for c in whole:
            tested[c] += channels[c]
        clear = _compare(case, channels, brief, nodes, at)  # without any clock
        for c, found in _compare(case, channels, delivery / scale, nodes, at).items():
            if c not in whole or (only is not None and c not in only):
                continue
            clocks = ops.channels[c].members if ops.channels[c].p2p and c not in clear else ()
            doubt = NORMAL_95 * sum(case.clocks.doubt.get(rank, 0.0) for rank in clocks)
            if found.here - found.peers <= max(doubt, scheduled):
                continue
            slow[c].append(found)
            sure |= is_sure(case, c, channels[c], clockless=c in clear)
            token = str(ops.token[case.waits.first_row[channels[c][0]]])
            usual = found.peers * scale[channels[c]]
            if token.endswith(UNKNOWN_SIZE) and not ops.channels[c].p2p:  # large and small calls
                usual = delivery[channels[c]] * found.peers / found.here
            late[channels[c]] = np.maximum(delivery[channels[c]] - usual, 0.0)
            untimed = _untimed(case, c, token)
            late[untimed] = (np.minimum(delivery[untimed], found.here) - found.peers).clip(0.0)
    return slow, tested, late, sure


def _untimed(case: Case, channel: int, token: str) -> I64:
    """The instances of `token` on a slow channel with only a bound of their time, at least that of the timed ones."""
    rows = case.waits.first_row
    bounded = case.waits.complete & ~case.waits.timed & case.analysed[rows]
    return np.flatnonzero(bounded & (case.ops.channel[rows] == channel) & (case.ops.token[rows] == token))


def briefest(case: Case) -> F64:
    """Return the duration of the shortest operation of each instance, ns: that of the end which joined last."""
    ops = case.ops
    brief = np.full(len(case.waits.first_row), np.inf)
    rows = np.flatnonzero(ops.instance >= 0)
    np.minimum.at(brief, ops.instance[rows], (ops.end - ops.start)[rows].astype(np.float64))
    return brief


def _compare(
    case: Case,
    channels: dict[int, list[int]],
    spent: F64,
    nodes: Nodes = MappingProxyType({}),
    at: frozenset[int] = frozenset(),
) -> dict[int, _Slowness]:
    """The channels that spend longer than the median of the others; `channels` holds their instances, `spent` is ns.

    In a short pipeline the others are links of other ranks or `nodes`, or links that are not slow.
    """
    places = {c: _by_place(case, n) for c, n in channels.items()}
    level = {c: float(np.mean([np.median(spent[p]) for p in found])) for c, found in places.items()}
    level = _both_ways(case, level)
    slow: dict[int, _Slowness] = {}
    usual = dict(zip(level, zip(*spread_of_others(list(level.values())), strict=True), strict=True))
    ends = short_pipeline([case.ops.channels[c] for c in channels], nodes)
    for channel in sorted(channels, key=lambda c: not beside(ends, c, ())):  # overlapping with all comes last
        others = beside(ends, channel, slow)
        peers, between = level_of([level[c] for c in others]) if others else usual[channel]
        ratio = KIND_RATIO if len(others or channels) > 2 else KIND_RATIO**2  # either of two may vary
        if at and at.issubset(case.ops.channels[channel].members):
            ratio = 1.0
        apart = np.concatenate([np.abs(spent[p] - np.median(spent[p])) for p in places[channel]])
        noise = MAD_TO_SIGMA * float(np.median(apart)) / np.sqrt(len(channels[channel]))
        scale = max(float(np.hypot(noise, between)), USUAL_VARIATION * peers, 1.0)
        z = (level[channel] - peers) / scale
        if level[channel] > ratio * peers and z > Z_LIMIT:
            slow[channel] = _Slowness(level[channel], peers, z)
    return slow


def _by_place(case: Case, numbers: list[int]) -> list[I64]:
    """The instances of a channel, split by their place in the step if they may differ and enough steps repeat them.

    In a pipeline the receiver may ask for every second message late enough to hide a slow link, and operations of
    unknown size carry varying amounts: that is not noise.
    """
    chosen, ops = np.array(numbers), case.ops
    rows = case.waits.first_row[chosen]
    if not ops.channels[int(ops.channel[rows[0]])].p2p and not str(ops.token[rows[0]]).endswith(UNKNOWN_SIZE):
        return [chosen]
    steps = [chosen[ops.step[rows] == step] for step in np.unique(ops.step[rows])]
    places = min(len(step) for step in steps)
    if len(steps) < NO_ACCIDENT or places == 1:
        return [chosen]
    return [np.array([step[place] for step in steps]) for place in range(places)]


def _parts(case: Case, channels: dict[int, list[int]]) -> list[dict[int, list[int]]]:
    """The instances of `channels` by their place in the step where these are collectives of unknown size.

    One of several such calls may be another one, or wait for ranks that its inferred group lacks, and hide the rest.
    """
    ops = case.ops
    if any(ops.channels[c].p2p for c in channels):
        return [channels]
    places = {c: _by_place(case, numbers) for c, numbers in channels.items()}
    if len({len(found) for found in places.values()}) > 1:
        return [channels]
    count = len(next(iter(places.values())))
    return [{c: found[at].tolist() for c, found in places.items()} for at in range(count)]


def _thread_doubt(case: Case) -> float:
    """The difference between transfers that a host's scheduler may cause where threads carry them out, ns."""
    return 0.0 if all(found.on_gpu for found in case.ops.per_rank.values()) else TIME_SLICE_NS


def _both_ways(case: Case, level: dict[int, float]) -> dict[int, float]:
    """The mean transfer of both directions between two ranks, by channel, ns; an error of their clocks cancels."""
    known = case.ops.channels
    number = {known[c].members: c for c in level if known[c].p2p}
    back = {c: number.get(known[c].members[::-1], c) if known[c].p2p else c for c in level}
    return {c: (value + level[back[c]]) / 2 for c, value in level.items()}
