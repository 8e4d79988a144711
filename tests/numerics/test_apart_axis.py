"""The axis along which alone the copies of a tensor differ."""

from types import SimpleNamespace

import numpy as np
import pytest

from numerics.comparison.joins.mesh_axes import apart_axis, axis_of_ranks
from tracekit.axes import AXES


class Rows(SimpleNamespace):
    """Rows of ranks on dp=3, tp=2, with a digest each."""

    def __getitem__(self, axis):
        return self.axes[axis]

    def __len__(self):
        return len(self.axes["rank"])


@pytest.mark.parametrize(
    ("digests", "axis"),
    [([1, 1, 2, 2, 3, 3], "dp"), ([1, 2, 1, 2, 1, 2], "tp"), ([1, 2, 3, 4, 5, 6], None), ([1] * 6, None)],
)
def test_copies_lie_apart_along_one_axis(digests, axis):
    axes = {name: np.zeros(6, int) for name in AXES} | {"dp": np.arange(6) // 2, "tp": np.arange(6) % 2}
    assert apart_axis(Rows(axes=axes, digest=np.array(digests)), list(range(6))) == axis


@pytest.mark.parametrize(("ranks", "axis"), [((2, 3), "dp"), ((1, 3, 5), "tp"), ((1, 2), None), ((4,), None)])
def test_odd_ranks_lie_on_one_axis(ranks, axis):
    axes = {name: np.zeros(6, int) for name in AXES} | {"dp": np.arange(6) // 2, "tp": np.arange(6) % 2}
    assert axis_of_ranks(Rows(axes=axes | {"rank": np.arange(6)}), ranks) == axis
