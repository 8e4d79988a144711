"""A gather has the size of all members' parts, though each rank recorded its own part alone."""

import pytest

from tests.tables.rows import comm, group, matched


@pytest.mark.parametrize(
    ("op", "sizes", "expected"),
    [
        ("all_gather", {"in_nelems": 5, "out_nelems": None}, "all_gather/Float/15"),
        ("gather", {"in_nelems": 5, "out_nelems": None}, "gather/Float/15"),
        ("all_gather", {"in_nelems": 5, "out_nelems": 15}, "all_gather/Float/15"),
        ("all_gather", {"in_nelems": None, "out_nelems": None}, "all_gather/Float/-1"),
        ("all_reduce", {"in_nelems": 5, "out_nelems": None}, "all_reduce/Float/5"),
    ],
)
def test_a_gather_is_as_large_as_all_parts(op, sizes, expected):
    rows = [comm(10, 20, 0, op, **sizes)]
    assert set(matched(dict.fromkeys(range(3), rows), group(0, 0, 1, 2)).token) == {expected}
