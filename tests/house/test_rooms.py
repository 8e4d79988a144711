"""A room holds what one person can look over."""

from collections import Counter

from tests.house.source import ROOT

MOST_MODULES = 25


def test_no_room_is_crowded():
    modules = (
        path for name in ("tracekit", "numerics", "reftrain", "cli") for path in (ROOT / name).rglob("*.py")
    )
    rooms = Counter(str(path.parent.relative_to(ROOT)) for path in modules)
    assert {room: count for room, count in rooms.items() if count > MOST_MODULES} == {}
