"""Union-find: the smallest item stands for its set, whatever the order of joins."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracekit.disjoint_sets import DisjointSets

PAIRS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12)


def components(pairs):
    """Smallest item of each item's component, by repeated relabelling."""
    label = {item: item for item in range(10)}
    for _ in range(10):
        for a, b in pairs:
            label[a] = label[b] = min(label[a], label[b])
    return label


@given(PAIRS, st.randoms())
def test_sets_are_named_by_their_smallest_item(pairs, random):
    sets = DisjointSets(range(10))
    shuffled = random.sample(pairs, len(pairs))
    for a, b in shuffled:
        apart = sets.find(a) != sets.find(b)
        assert sets.join(a, b) == apart
    assert {item: sets.find(item) for item in range(10)} == components(pairs)


def test_an_unknown_item_is_an_error():
    with pytest.raises(KeyError):
        DisjointSets([1, 2]).find(3)
