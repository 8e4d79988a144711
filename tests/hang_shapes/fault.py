"""Faults: what each changes in the program of its culprit, and what is true then."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from math import inf

from tests.hang_shapes.bench import (
    DEVICE,
    HOST,
    MISMATCH,
    MISSING,
    Bench,
    Fault,
    NotHere,
    is_call,
    is_collective,
)
from tests.hang_shapes.calls import Collective, Compute, HostStuck, Item, Message, Messages, Program


def host_stall(bench: Bench) -> Fault:
    """The host of a rank stops before a call."""
    rank = bench.rank()
    place = bench.place(rank, is_call)
    bench.change(rank, place, HostStuck())
    return Fault("host_stall", (rank,), (HOST,))


def two_hosts(bench: Bench) -> Fault:
    """The hosts of two ranks stop in one step."""
    ranks = tuple(sorted(bench.drawn.sample(range(len(bench.programs)), 2)))
    for rank in ranks:
        bench.change(rank, bench.place(rank, is_call), HostStuck())
    return Fault("two_hosts", ranks, (HOST,))


def crash(bench: Bench) -> Fault:
    """A process dies with what it has enqueued; nobody writes its dump."""
    rank = bench.rank()
    place = bench.place(rank, is_call)
    first = [Compute(inf)] if bench.drawn.random() < 0.4 else []
    bench.change(rank, place, *first, HostStuck())
    return Fault("crash", (rank,), (MISSING,), frozenset({rank}))


def node_crash(bench: Bench) -> Fault:
    """A host of eight dies."""
    size = min(8, len(bench.programs) // 2)
    first = bench.drawn.randrange(len(bench.programs) // size) * size
    ranks = tuple(range(first, first + size))
    for rank in ranks:
        bench.change(rank, bench.place(rank, is_call), HostStuck())
    return Fault("node_crash", ranks, (MISSING,), frozenset(ranks))


def gone_dump(bench: Bench) -> Fault:
    """A host stops and cannot write its dump."""
    fault = host_stall(bench)
    return Fault("gone_dump", fault.ranks, (MISSING,), frozenset(fault.ranks))


def gone_victims(bench: Bench) -> Fault:
    """A host stops, and some victims' dumps are lost."""
    fault = host_stall(bench)
    others = sorted(set(range(len(bench.programs))) - set(fault.ranks))
    gone = bench.drawn.sample(others, min(len(others) // 4 + 1, bench.drawn.randint(1, 8)))
    return replace(fault, kind="gone_victims", gone=frozenset(gone))


def device_stuck(bench: Bench) -> Fault:
    """A kernel of a rank never ends; its host runs on as far as it can."""
    rank = bench.rank()
    place = bench.place(rank, is_call)
    bench.change(rank, place, Compute(inf), bench.programs[rank].items[place])
    return Fault("device_stuck", (rank,), (DEVICE,))


def device_blind(bench: Bench) -> Fault:
    """A device is lost: its host sees no more ends, and stops some calls later; until then the device does its part."""
    rank = bench.rank()
    place = bench.place(rank, is_call)
    items = bench.programs[rank].items
    later = [at for at in range(place + 1, len(items)) if is_call(items[at])][:12]
    if len(later) < 2:
        raise NotHere
    bench.change(rank, bench.drawn.choice(later[1:]), HostStuck())
    return Fault("device_blind", (rank,), (DEVICE, HOST), blind={rank: place})


def device_unseen(bench: Bench) -> Fault:
    """The same, where no start is recorded."""
    return replace(device_stuck(bench), kind="device_unseen")


def link(bench: Bench) -> Fault:
    """A collective that all start never ends."""
    rank = bench.rank()
    place = bench.place(rank, is_collective)
    return Fault("link", dead={numbered(bench.programs[rank], place): None})


def link_spared(bench: Bench) -> Fault:
    """The same, but one member has what it needs and finishes."""
    rank = bench.rank()
    place = bench.place(rank, is_collective)
    key = numbered(bench.programs[rank], place)
    return Fault("link_spared", dead={key: rank})


def numbered(program: Program, place: int) -> tuple[str, int]:
    """The group of a collective and its number there."""
    item = program.items[place]
    assert isinstance(item, Collective)
    before = [i for i in program.items[:place] if isinstance(i, Collective) and i.group == item.group]
    return item.group.name, len(before)


def link_pair(bench: Bench) -> Fault:
    """A message that both ends start never arrives, nor any that follows it there."""
    rank = bench.rank()
    place = bench.place(rank, lambda item: isinstance(item, Messages))
    item = bench.programs[rank].items[place]
    assert isinstance(item, Messages)
    message = bench.drawn.choice(item.messages)
    ends = (rank, message.peer) if message.sends else (message.peer, rank)
    before = [
        one
        for earlier in bench.programs[rank].items[:place]
        if isinstance(earlier, Messages) and earlier.group == item.group
        for one in earlier.messages
        if (one.peer, one.sends) == (message.peer, message.sends)
    ]
    name = f"{item.group.name}:{ends[0]}>{ends[1]}"
    return Fault("link_pair", dead={(name, number): None for number in range(len(before), 999)})


def skip_collective(bench: Bench) -> Fault:
    """A rank leaves a collective out."""
    rank = bench.rank()
    place = bench.place(rank, is_collective)
    bench.change(rank, place)
    return Fault("skip_collective", (rank,), (HOST, MISMATCH))


def skip_message(bench: Bench) -> Fault:
    """A rank leaves a send or a receive out."""
    rank = bench.rank()
    place = bench.place(rank, lambda item: isinstance(item, Messages))
    item = bench.programs[rank].items[place]
    assert isinstance(item, Messages)
    left = bench.drawn.choice(item.messages)
    rest = tuple(one for one in item.messages if one is not left)
    bench.change(rank, place, *([replace(item, messages=rest)] if rest else []))
    return Fault("skip_message", (rank,), (HOST, MISMATCH))


def wrong_op(bench: Bench) -> Fault:
    """A rank makes another operation than its group."""
    rank = bench.rank()
    place = bench.place(rank, is_collective)
    item = bench.programs[rank].items[place]
    assert isinstance(item, Collective)
    other = bench.drawn.choice(
        [op for op in ("broadcast", "all_reduce", "_all_gather_base") if op != item.op]
    )
    bench.change(rank, place, replace(item, op=other))
    return Fault("wrong_op", (rank,), (MISMATCH,))


def wrong_size(bench: Bench) -> Fault:
    """A rank's tensor is of another size."""
    rank = bench.rank()
    place = bench.place(rank, lambda item: is_call(item) and sized(item))
    item = bench.programs[rank].items[place]
    if isinstance(item, Messages):
        changed: Item = replace(item, messages=tuple(map(longer_message, item.messages)))
    else:
        assert isinstance(item, Collective)
        inputs, outputs = ([tuple(map(longer, shapes))] for shapes in (item.inputs, item.outputs))
        changed = replace(item, inputs=inputs[0], outputs=outputs[0])
    bench.change(rank, place, changed)
    return Fault("wrong_size", (rank,), (MISMATCH,))


def sized(item: Item) -> bool:
    """Whether its sizes must agree."""
    return isinstance(item, Messages) or (
        isinstance(item, Collective) and item.op not in {"all_to_allv", "gather"}
    )


def longer(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Another shape."""
    return (shape[0] * 2, *shape[1:]) if shape else (2,)


def longer_message(message: Message) -> Message:
    """A message of another shape, if it is sent."""
    return replace(message, shape=longer(message.shape)) if message.sends else message


def wrong_dtype(bench: Bench) -> Fault:
    """A rank's tensor is of another type."""
    rank = bench.rank()
    place = bench.place(rank, lambda item: is_collective(item) and sized(item))
    item = bench.programs[rank].items[place]
    assert isinstance(item, Collective)
    bench.change(rank, place, replace(item, dtype="Half" if item.dtype == "BFloat16" else "Double"))
    return Fault("wrong_dtype", (rank,), (MISMATCH,))


def swap(bench: Bench) -> Fault:
    """A rank makes two calls of two groups in the opposite order."""
    rank = bench.rank()
    places = bench.places(rank, is_collective)
    items = bench.programs[rank].items
    pairs = []
    for first, second in pairwise(places):
        one, other = items[first], items[second]
        assert isinstance(one, Collective)
        assert isinstance(other, Collective)
        if one.group != other.group and len(one.group.ranks) > 2:
            pairs.append((first, second))
    if not pairs:
        raise NotHere
    first, second = bench.drawn.choice(pairs)
    items[first], items[second] = items[second], items[first]
    bench.at[rank] = first
    return Fault("swap", (rank,), (HOST, MISMATCH))


def early_stop(bench: Bench) -> Fault:
    """A rank's data end early: it leaves the step and makes the next one's calls, so that it lacks some."""
    rank = bench.rank()
    places = bench.places(rank, lambda _: True)
    items = bench.programs[rank].items
    calls = [place for place in places if is_call(items[place])]
    if len(calls) < 4:
        raise NotHere
    first = bench.drawn.choice(calls[1:-2])
    world = max(len(item.group.ranks) for item in items if isinstance(item, Collective))
    last = next(
        (i for i in items[places[-1] :] if isinstance(i, Collective) and len(i.group.ranks) == world), None
    )
    del items[first:]
    bench.at[rank] = first
    items.extend([last, HostStuck()] if last is not None else [HostStuck()])
    return Fault("early_stop", (rank,), (HOST, MISMATCH))


FAULTS: dict[str, Callable[[Bench], Fault]] = {
    made.__name__: made
    for made in (
        host_stall,
        two_hosts,
        crash,
        node_crash,
        gone_dump,
        gone_victims,
        device_stuck,
        device_unseen,
        link,
        link_spared,
        link_pair,
        skip_collective,
        skip_message,
        wrong_op,
        wrong_size,
        wrong_dtype,
        swap,
        early_stop,
    )
}

ASKED: dict[str, Callable[[Bench], Fault]] = {"device_blind": device_blind}
"""Faults that no seed draws by itself: they came when seeds had their cases."""
