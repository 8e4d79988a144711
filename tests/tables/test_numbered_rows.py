"""Several columns together get the numbers that numpy's comparison of whole rows gives them."""

import numpy as np
import pytest

from tracekit.arrays import numbered_rows


@pytest.mark.parametrize("count", [0, 1, 500])
def test_rows_are_numbered_in_ascending_order(count):
    drawn = np.random.default_rng(0)
    columns = [drawn.integers(-2, 5, count), drawn.integers(0, 3, count), drawn.integers(0, 2**40, count) % 2]
    first, number = numbered_rows(*columns)
    rows, place, inverse = np.unique(np.stack(columns), axis=1, return_index=True, return_inverse=True)
    assert first.tolist() == place.tolist()
    assert number.tolist() == inverse.reshape(-1).tolist()
    assert np.stack(columns)[:, first].tolist() == rows.tolist()
