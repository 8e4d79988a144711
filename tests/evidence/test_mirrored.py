"""Two jobs with one log and different culprits: of two members that make unlike calls none may be named."""

import pytest

from tests.evidence.mirrored import undecidable
from tests.evidence.watchdog import NAMED, Spelling
from tests.marks import quick_first


@pytest.mark.parametrize("seed", quick_first(1, [1, 3, 14, 28, 85]))
def test_a_mirrored_job_leaves_the_same_log(seed):
    assert undecidable(seed, Spelling(NAMED[seed % len(NAMED)], desync=True))
