"""What every folder of tests may use."""

import gc
import os
from collections import defaultdict
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
    """Mark slow all but n cases of a test that is marked `quick(n)`: those n are spread over all of them."""
    cases = defaultdict(list)
    for item in items:
        if item.get_closest_marker("quick") and not item.get_closest_marker("slow"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for like in cases.values():
        count = like[0].get_closest_marker("quick").args[0]
        quick = {place * len(like) // count for place in range(count)}
        for place, item in enumerate(like):
            if place not in quick:
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
