"""Disjoint sets (union-find): which ranks are connected, directly or through others."""

from collections.abc import Iterable


class DisjointSets:
    """A partition of `items` (ranks), at first one set per item; `join` merges two of its sets.

    The smallest item of a set represents it, so the result does not depend on the order of the joins.
    """

    def __init__(self, items: Iterable[int]) -> None:
        self._parent = {item: item for item in items}

    def find(self, item: int) -> int:
        """Return the smallest item of the set that holds `item`; KeyError where `item` is unknown."""
        parent = self._parent
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def join(self, one: int, other: int) -> bool:
        """Merge the sets of two items; false where they were one set already."""
        low, high = sorted((self.find(one), self.find(other)))
        self._parent[high] = low
        return low != high
