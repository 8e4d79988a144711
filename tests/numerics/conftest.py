import pytest

from tests.reftrain.pool import RankPool


@pytest.fixture(scope="session")
def ranks():
    pool = RankPool(16)
    yield pool
    pool.close()
