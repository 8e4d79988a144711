"""What every folder of tests may use."""

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.ranks.pool import RankPool

settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # the same examples each time, however slow the machine
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """No compiled code that this user keeps is used, and none is left: a test sees the same on every machine."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def ranks():
    """The session's pool of ranks, started when first used."""
    pool = RankPool()
    yield pool
    pool.close()
