"""Disjoint sets (union-find): which items are connected, directly or through others."""

from collections.abc import Hashable, Iterable
from typing import Generic, Protocol, TypeVar


class _Ordered(Hashable, Protocol):
    def __lt__(self, other: "_Ordered", /) -> bool: ...


Item = TypeVar("Item", bound="_Ordered")


class DisjointSets(Generic[Item]):
    """A partition of `items`, at first one set per item; `join` merges two of its sets.

    The smallest item of a set stands for the set, so the answer does not depend on the order of the joins.
    """

    def __init__(self, items: Iterable[Item]) -> None:
        self._parent = {item: item for item in items}

    def find(self, item: Item) -> Item:
        """Return the smallest item of the set that holds `item`; KeyError where `item` is unknown."""
        parent = self._parent
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    def join(self, one: Item, other: Item) -> bool:
        """Merge the sets of two items; false where they were one set already."""
        low, high = self.find(one), self.find(other)
        if low == high:
            return False
        if high < low:
            low, high = high, low
        self._parent[high] = low
        return True
