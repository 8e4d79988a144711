"""How long transfers take: eight GPUs of a host share NVLink, hosts have a network card for each GPU."""

import math
import random
from collections.abc import Sequence

from tests.shapes.fault import Fault

PER_HOST = 8
NVLINK = 150e3
"""Bytes per µs of a ring within a host."""
CARD = 22e3
"""Bytes per µs of one network card, of which a ring uses one for each member that a host holds."""
CARD_MESSAGE = 40e3
"""Bytes per µs of a message to another host."""
FIFO = {False: 16 * 2**20, True: 4 * 2**20}
"""Bytes that a sender leaves in a buffer without waiting for its receiver, within a host and across."""
RETRIED = 0.12
"""The part of transfers over a card that drops packets which have to send some again."""
SIZES = {"BFloat16": 2, "Float": 4, "Long": 8, "Int": 4}


def host_of(rank: int, per_host: int = PER_HOST) -> int:
    """The host that holds a rank."""
    return rank // per_host


def across(ranks: Sequence[int], per_host: int = PER_HOST) -> bool:
    """Whether ranks are on several hosts."""
    return len({host_of(rank, per_host) for rank in ranks}) > 1


def chance(seed: int, key: tuple[int, ...], sigma: float) -> float:
    """By which factor a transfer is longer than the formula; a hash of integers is the same in every process."""
    return 1 + abs(random.Random(seed + hash(key) % 99991).gauss(0, sigma))


def collective_us(ranks: Sequence[int], op: str, size: int, per_host: int = PER_HOST) -> float:
    """The time of a ring that moves `size` bytes: latency, then each byte once per member, twice for an all-reduce."""
    members = len(ranks)
    share = (2.0 if op == "allreduce" else 1.0) * (members - 1) / members
    bandwidth, latency = NVLINK, 9.0
    if across(ranks, per_host):
        first = sum(host_of(rank, per_host) == host_of(ranks[0], per_host) for rank in ranks)
        bandwidth, latency = CARD * min(per_host, first), 18.0
    return latency + 2.0 * math.log2(max(2, members)) + size * share / bandwidth


def message_us(source: int, target: int, size: int, per_host: int = PER_HOST) -> float:
    """The time of a message of `size` bytes once both ends are there."""
    if across((source, target), per_host):
        return 14.0 + size / CARD_MESSAGE
    return 7.0 + size / NVLINK


def eager(source: int, target: int, size: int, per_host: int = PER_HOST) -> bool:
    """Whether a sender leaves before its receiver comes."""
    return size <= FIFO[across((source, target), per_host)]


def slowed(
    us: float,
    fault: Fault | None,
    ranks: Sequence[int],
    step: int,
    *,
    message: bool = False,
    per_host: int = PER_HOST,
    luck: float = 1.0,
    least: float = 0.0,
) -> float:
    """The time of a transfer among `ranks` when links are slow: a card slows what leaves its host, NVLink a pair.

    A ring is as slow as its slowest link; a message passes a pair's link only where the pair are its two ends. A card
    that sends slowly (`nic_out`) slows messages of its own alone, a port all that stays within its host: bytes, not the
    `least` time of a transfer of none. A card that drops packets (`retry`) delays those of bad `luck`, from 0 to 1.
    """
    leaves = across(ranks, per_host)
    for part in fault.parts if fault else ():
        pair = set(part.ranks)
        if part.applies("nic", step) and leaves and pair & set(ranks):
            us *= part.amount
        if part.applies("nic_out", step) and leaves and pair & set(ranks[:1] if message else ranks):
            us += (us - least) * (part.amount - 1)
        if part.applies("port", step) and not leaves and pair & set(ranks):
            us += (us - least) * (part.amount - 1)
        if part.applies("retry", step) and leaves and pair & set(ranks) and luck < RETRIED:
            us += part.amount
        if part.applies("nvlink", step) and (pair == set(ranks) if message else pair <= set(ranks)):
            us *= part.amount
    return us
