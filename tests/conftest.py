"""What every folder of tests may use."""

import pytest

from tests.ranks.pool import RankPool


@pytest.fixture(scope="session")
def ranks():
    """The session's pool of ranks, started when first used."""
    pool = RankPool()
    yield pool
    pool.close()
