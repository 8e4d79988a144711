"""Hand-made recordings as stock Gloo leaves them: spans on threads, calls on the main thread, no group anywhere."""

from collections.abc import Sequence
from typing import Any

from tests.tables.rows import Row, row, step
from tracekit.schema import Group

MAIN, FIRST_THREAD = 100, 200


def span(thread: int, begin: float, us: float, op: str = "all_reduce") -> Row:
    """A collective on one of Gloo's threads, by number."""
    return row("user_annotation", f"gloo:{op}", begin, us, pid=1, tid=FIRST_THREAD + thread)


def called(op: str, begin: float, us: float, peer: int | None = None) -> Row:
    """A call on the main thread; of a message with the peer's place in the group."""
    return row("cpu_op", f"c10d::{op}", begin, us, pid=1, tid=MAIN, input_peer=peer)


def message(op: str, begin: float, until: float, peer: int | None, call_us: float = 5) -> list[Row]:
    """A call that posts a message, and the span that ends when the host has waited for it."""
    posted = begin + call_us
    name = {"send": "send", "recv": "recv_"}[op]
    waited = row("user_annotation", f"gloo:{op}", posted - 1, until - posted + 1, pid=1, tid=MAIN)
    return [called(name, begin, call_us, peer), waited]


def operator(name: str, begin: float, us: float) -> Row:
    """An operator on the main thread."""
    return row("cpu_op", name, begin, us, pid=1, tid=MAIN)


def steps(*bounds: tuple[float, float]) -> list[Row]:
    """Marked steps as (begin, length)."""
    return [step(n, begin, us) for n, (begin, us) in enumerate(bounds)]


def named(number: int, name: str, *ranks: int, **more: Any) -> Group:
    """A process group that was created as number `name`."""
    return Group(number, ranks, (name,), tuple(more.get("descs", ())))


def grid() -> Sequence[Group]:
    """The groups of four ranks, dp = 2 outside tp = 2, as init_device_mesh creates them."""
    return (
        named(0, "0", 0, 1, 2, 3), named(1, "1", 0, 2), named(2, "2", 1, 3),
        named(3, "3", 0, 1), named(4, "4", 2, 3),
    )  # fmt: skip
