"""Operations with an unrecorded rank that last longer outside the compared steps leave a job open."""

from types import SimpleNamespace

import numpy as np
import pytest

from tracekit.timing.waits import longer_outside

INSIDE, OUTSIDE = 3, 3


def operations(longer):
    """Two recorded members of a group: `longer` holds the ns that each operation outside takes longer, by member."""
    lasted = np.concatenate(
        [[100.0] * INSIDE, 100.0 + np.array(longer[0]), [100.0] * INSIDE, 100.0 + np.array(longer[1])]
    )
    many = len(lasted)
    return SimpleNamespace(
        channel=np.zeros(many, np.int64), rank=np.repeat([0, 1], many // 2), start=np.zeros(many), end=lasted,
        messages=(("all_reduce",), np.zeros(many, np.int64)),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("longer", "found"),
    [
        (([60, 60, 60], [50, 50, 50]), 50 * INSIDE),
        (([60, 60, 60], [0, 0, 0]), 0),
        (([900, 0, 0], [900, 0, 0]), 0),
    ],
    ids=["both wait", "one waits", "one operation"],
)
def test_the_usual_wait_of_all_members_counts(longer, found):
    inside = np.tile([True] * INSIDE + [False] * OUTSIDE, 2)
    assert longer_outside(operations(longer), inside, np.arange(len(inside))) == found
