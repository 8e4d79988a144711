"""The variation of thresholds: which way each moves, and that all modules get their value back."""

import pytest

from tests.paired.variation import changed, thresholds, varied
from tracekit.thresholds.slowrank import MIN_LOST_SHARE
from tracekit.timing import measured


@pytest.mark.parametrize(
    ("value", "doubled", "halved"),
    [(3, 6, 1), (1, 2, 1), (0.2, 0.4, 0.1), (0.9, 0.95, 0.8), (4.5, 9.0, 2.25)],
)
def test_a_share_keeps_below_one(value, doubled, halved):
    assert varied(value, "doubled") == pytest.approx(doubled)
    assert varied(value, "halved") == pytest.approx(halved)


def test_a_threshold_is_varied_and_put_back():
    assert thresholds()["MIN_LOST_SHARE"] == MIN_LOST_SHARE
    with changed([("MIN_LOST_SHARE", "doubled")], thresholds()):
        assert vars(measured)["MIN_LOST_SHARE"] == 2 * MIN_LOST_SHARE
    assert vars(measured)["MIN_LOST_SHARE"] == MIN_LOST_SHARE
