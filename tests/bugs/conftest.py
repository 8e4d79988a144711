import pytest

from tests.reftrain.pool import RankPool


@pytest.fixture(scope="package")
def ranks():
    pool = RankPool(4)
    yield pool
    pool.close()
