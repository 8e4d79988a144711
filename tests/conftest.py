"""What every folder of tests may use."""

import pytest
from hypothesis import HealthCheck, settings

from tests.ranks.pool import RankPool

settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # the same examples each time, however slow the machine
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


@pytest.fixture(scope="session")
def ranks():
    """The session's pool of ranks, started when first used."""
    pool = RankPool()
    yield pool
    pool.close()
