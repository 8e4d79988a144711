"""What a sound transfer takes on the hardware of a job: what the hardware reaches, and the longest that it lets pass.

The hardware is what the user describes, else what the names of devices in the traces say of NVLink, else any on which
large models are trained. Each bounds a transfer from both sides, so that one rule judges all: what is longer than the
longest has a fault or another hardware, and what is as quick as the hardware is proven sound.

With a member without a trace, the last recorded member waits for no recorded rank. Where it stays longer than the
quickest transfer of as many bytes in the same group, it waits for the unrecorded one, or its network is busy.
"""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from tracekit.expected.nodes import Nodes, nodes_of, reach
from tracekit.matching.channels import Channel
from tracekit.mesh.hardware import Hardware
from tracekit.rank_events.operation_names import is_ring, ring_share
from tracekit.thresholds.slowrank import (
    CLEARLY_MORE,
    FAR_MORE,
    FAST_BUS_GB_S,
    KIND_RATIO,
    NETWORKS_RATIO,
    SLOWEST_BYTES_PER_NS,
    SLOWEST_START_NS,
    TIME_SLICE_NS,
)
from tracekit.timing.buffered_sends import bytes_of
from tracekit.timing.measured import Measured
from tracekit.units import F64, I64, Mask


@dataclass(frozen=True)
class SoundTransfers:
    """The timed `numbers` (instances) and what they take if sound, ns.

    usual: what their hardware reaches, no longer than a transfer that varies from it as those of one kind do. most: the
    longest; infinite where a size is unknown. loaded: whether bandwidth rather than latency makes them long.
    """

    numbers: I64
    usual: F64
    most: F64
    loaded: Mask


def sound_transfers(run: Measured, channels: Collection[int]) -> SoundTransfers:
    """Return what the timed transfers on `channels` take if their links are sound."""
    numbers, size = sized(run, channels)
    at, nodes, given = run.waits.first_row[numbers], nodes_of(run), run.run.hardware
    usual, most = np.maximum(size, 0.0) / FAST_BUS_GB_S, np.full(len(numbers), np.inf)
    loaded = size > 0
    for number in np.unique(run.ops.channel[at]).tolist():
        channel = run.ops.channels[number]
        mine = np.flatnonzero((run.ops.channel[at] == number) & (size > 0))
        if given is None:
            begun = _begun_ns(run, numbers[mine], np.ones(len(mine), bool))
            most[mine] = begun + size[mine] / _slowest_gb_s(run, channel, nodes)
            continue
        ops, took = run.ops.op[at[mine]].astype(str).tolist(), run.waits.delivery[numbers[mine]]
        where = reach(channel, nodes)
        inside = (len(channel.members), 1) if where is None else (where[-1], where[-1])  # of one node
        least, longest = (_described_ns(given, channel, n, ops, size[mine]) for n in inside)
        start = _described_ns(given, channel, inside[0], ops, np.zeros(len(mine)))
        loaded[mine] = least > CLEARLY_MORE * start
        usual[mine] = np.where(took <= KIND_RATIO * least, took, least)
        begins = np.where(loaded[mine], _begun_ns(run, numbers[mine], ~loaded[mine]), SLOWEST_START_NS)
        most[mine] = CLEARLY_MORE * longest + begins + (0.0 if run.on_gpus else TIME_SLICE_NS)
    return SoundTransfers(numbers, usual, most, loaded)


def sized(run: Measured, channels: Collection[int]) -> tuple[I64, F64]:
    """Return (the timed instances on `channels`, the bytes that each member sends in a ring; negative if unknown)."""
    ops, waits = run.ops, run.waits
    rows = waits.first_row
    timed = waits.complete & waits.timed & run.analysed[rows] & np.isin(ops.channel[rows], list(channels))
    numbers = np.flatnonzero(timed)
    at = rows[numbers]
    many = [len(ops.channels[c].members) for c in ops.channel[at].tolist()]
    share = np.array([ring_share(str(op), n) for op, n in zip(ops.op[at], many, strict=True)])
    return numbers, share * np.array([bytes_of(str(t)) for t in ops.token[at]], np.float64)


def beyond_hardware(run: Measured, channels: Collection[int]) -> tuple[tuple[int, ...], bool]:
    """Return (the `channels` with loaded transfers longer than described hardware lets them, whether all of them are).

    Where all are, the description does not fit the job, or all its links are slow.
    """
    if run.run.hardware is None:
        return (), False
    sound = sound_transfers(run, channels)
    channel = run.ops.channel[run.waits.first_row[sound.numbers]]
    ratio = run.waits.delivery[sound.numbers] / sound.most
    tested = np.unique(channel[sound.loaded]).tolist()
    slow = tuple(c for c in tested if np.median(ratio[sound.loaded & (channel == c)]) > 1.0)
    return slow, bool(slow) and len(slow) == len(tested)


def fit_hardware(run: Measured, channels: Collection[int]) -> bool:
    """Return whether described hardware explains how long the transfers on all `channels` take; False without any."""
    if run.run.hardware is None:
        return False
    sound = sound_transfers(run, channels)
    ratio = run.waits.delivery[sound.numbers] / sound.most
    return bool(len(ratio)) and bool(np.median(ratio) <= 1.0) and bool(np.isfinite(sound.most).all())


def _described_ns(given: Hardware, channel: Channel, inside: int, ops: list[str], size: F64) -> F64:
    """What described hardware takes for calls of `size` (bytes in a ring), ns."""
    calls, many = zip(ops, size.tolist(), strict=True), len(channel.members)
    return np.array([given.transfer_ns(op, n, many, inside) for op, n in calls])


def _begun_ns(run: Measured, numbers: I64, short: Mask) -> float:
    """The longest that a call of a group takes to begin, ns: no longer than its quickest kind of `short` calls.

    A link that delays every call delays these as well, and is not proven by them. `numbers` are the instances of the
    group. 0 without a short call.
    """
    tokens = run.ops.token[run.waits.first_row[numbers]].astype(str)
    took = run.waits.delivery[numbers]
    kinds = [float(np.median(took[short & (tokens == token)])) for token in np.unique(tokens[short])]
    return min([SLOWEST_START_NS, *kinds]) if kinds else 0.0


def _slowest_gb_s(run: Measured, channel: Channel, nodes: Nodes) -> float:
    """The least bus bandwidth that a sound link of `channel` reaches in large calls, GB/s.

    Inside a node with NVLink, tuning and full queues take no more than part of it; a network between such nodes is
    slower by `NETWORKS_RATIO` at most. Messages take one of its paths alone, so that they may be as slow inside a node
    as well. Where the traces name no such device, only networks that are too slow to train on are excluded.
    """
    known = {r.rank: r.device for r in run.run.ranks}
    named = {known[member] for member in channel.members if member in known}
    fast = (next((gb_s for end, gb_s in _NVLINK_GB_S.items() if name.endswith(end)), 0.0) for name in named)
    nvlink = min(fast, default=0.0)
    where = reach(channel, nodes)
    if nvlink and where is not None and len(where) == 1 and not channel.p2p:
        return FAST_BUS_GB_S / CLEARLY_MORE
    return max(nvlink / NETWORKS_RATIO, SLOWEST_BYTES_PER_NS)


_NVLINK_GB_S: Final = {
    "A100-SXM4-40GB": 240.0, "A100-SXM4-80GB": 240.0, "H100 80GB HBM3": 360.0, "NVIDIA H200": 360.0,
    "NVIDIA B200": 720.0,
}  # fmt: skip
"""What NCCL reaches in large calls, 80 % of NVLink in one direction (data sheets): on an H100 360 of 450.

The names are those of modules on boards that connect each pair at full speed. Cards are not among them, nor V100,
where some pairs have one link of six or none.
"""


def slowest_ns(token: str) -> float:
    """Return the longest time of a collective of `token` on any network, ns; without a size only the start-up time."""
    twice = 2 * max(bytes_of(token), 0)  # an all-reduce moves each byte twice
    return SLOWEST_START_NS + twice / SLOWEST_BYTES_PER_NS


def longest_ns(run: Measured, rows: I64, lasted: F64) -> F64:
    """Return the longest sound transfer of each of `rows`, ns: of collectives on GPUs; infinite for other operations.

    `lasted` is the time of each operation without waits for recorded ranks, ns. No sound network is slower, and no
    operation takes `FAR_MORE` times as long as others of its group need for as many bytes: members of a ring send as
    many in an all-gather as in a reduce-scatter, and twice as many in an all-reduce.
    """
    ops, longest = run.ops, np.full(len(rows), np.inf)
    rings: dict[int, list[int]] = defaultdict(list)
    for at, row in enumerate(rows.tolist()):
        channel, token = int(ops.channel[row]), str(ops.token[row])
        if channel < 0 or ops.channels[channel].p2p or not ops.per_rank[int(ops.rank[row])].on_gpu:
            continue
        longest[at] = slowest_ns(token)
        if is_ring(str(ops.op[row])) and bytes_of(token) > 0:
            rings[channel].append(at)
    for channel, mine in rings.items():
        members = len(ops.channels[channel].members)
        sent = [
            (bytes_of(str(ops.token[r])), ring_share(str(ops.op[r]), members)) for r in rows[mine].tolist()
        ]
        moved = np.array([size * share for size, share in sent])
        longest[mine] = np.minimum(longest[mine], FAR_MORE * _quickest(moved, lasted[mine]))
    return longest


def _quickest(moved: F64, lasted: F64) -> F64:
    """The time of each operation's bytes at the rate of the fastest operation that is not much larger, ns.

    Smaller operations need more time a byte, so that a larger one can keep up with their rate.
    """
    order = np.argsort(moved, kind="stable")
    rate = np.minimum.accumulate(lasted[order] / moved[order])
    upto = np.searchsorted(moved[order], CLEARLY_MORE * moved, side="right") - 1
    return np.asarray(rate[upto] * moved, np.float64)
