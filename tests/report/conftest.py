"""The answer that pages are drawn of."""

import pytest

from tests.slowrank.jobs import grid, job
from tracekit.analysis.slowrank.analyse import analyse, illustrated


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """The finding and the picture of a job with a slow rank 5 of tp=2, dp=4, without a trace of rank 6."""
    run = job(tmp_path_factory.mktemp("job"), grid(tp=2, dp=4), slow={5: 1.4}, lost=[6])
    finding, picture = illustrated(run)
    assert finding == analyse(run)
    return finding, picture
