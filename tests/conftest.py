"""What every folder of tests may use."""

import gc
import os
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.ranks.pool import RankPool

SAMPLES = Path(__file__).parents[1] / "sample_traces"

settings.register_profile(
    "same", derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)  # the same examples each time, however slow the machine
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("same")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark slow what comes after the first n cases of a test that is marked `quick(n)`."""
    seen = Counter()
    for item in items:
        quick = item.get_closest_marker("quick")
        if quick is None or item.get_closest_marker("slow"):
            continue
        name = item.nodeid.partition("[")[0]
        seen[name] += 1
        if seen[name] > quick.args[0]:
            item.add_marker(pytest.mark.slow)


gc.disable()  # until all tests are imported: what modules make is there to stay


def pytest_collection_finish():
    """Let the collector run from here on, and pass over nothing that the imports have made."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory):
    """No compiled code that this user keeps is used, and none is left: a test sees the same on every machine."""
    patch = pytest.MonkeyPatch()
    patch.setenv("XDG_CACHE_HOME", os.fspath(tmp_path_factory.mktemp("cache")))
    yield
    patch.undo()


@pytest.fixture(scope="session")
def ingested(tmp_path_factory):
    """Function from the name of a sample to the run that it is ingested into once, for tests of what comes after."""
    from tracekit.ingest import load

    folder = tmp_path_factory.mktemp("ingested")

    @cache
    def run(name):
        load([str(SAMPLES / name)], out=folder / name)
        return folder / name

    return run


@pytest.fixture(scope="session")
def ranks():
    """The session's pool of ranks, started when first used."""
    pool = RankPool()
    yield pool
    pool.close()
